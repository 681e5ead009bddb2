//! Arrival and flush times of the newest log entries on this node, for the stages of requests
//! ([`rowlock_metrics::Stage`]). No decision depends on these times.
//!
//! Openraft's core and the log's thread record, the state machine reads; once per entry, so that a request
//! costs nothing here. Bounded: only the newest entries are kept, older ones have no times.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};

/// Greatest number of entries with times: more than a leader has in flight, and than a follower receives in
/// one request.
const KEPT_MAX: usize = 128;

/// Entries in the log that are not applied, ordered by index.
#[derive(Debug, Default)]
pub struct EntryTimes(Mutex<VecDeque<Arrived>>);

#[derive(Clone, Copy, Debug)]
struct Arrived {
    index: u64,
    at: Instant,
    flushed: Option<Instant>,
}

/// Progress of an entry through this node, up to the start of its apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryStages {
    pub index: u64,
    /// Time when the entry entered this node's log in memory. Equal to `begun` if unknown (a log read at the
    /// start, a node that catches up).
    pub appended: Instant,
    /// Time when the entry was on this node's disk, if before `begun`.
    pub flushed: Option<Instant>,
    /// Start of the apply.
    pub begun: Instant,
    /// The times were recorded.
    pub known: bool,
}

impl EntryTimes {
    /// Records the arrival of these entries. Entries from `first` on are replaced.
    pub fn appended(&self, first: u64, last: u64) {
        let at = time::now();
        let mut kept = self.0.lock();
        while kept.back().is_some_and(|newest| newest.index >= first) {
            kept.pop_back();
        }
        let oldest = first.max((last + 1).saturating_sub(KEPT_MAX as u64));
        kept.extend((oldest..=last).map(|index| Arrived { index, at, flushed: None }));
        let beyond = kept.len().saturating_sub(KEPT_MAX);
        kept.drain(..beyond);
        debug_assert!(kept.iter().is_sorted_by_key(|one| one.index), "ordered by index");
    }

    /// Records that all entries up to `last` are on disk.
    pub fn flushed(&self, last: u64) {
        let now = time::now();
        let mut kept = self.0.lock();
        for one in kept.iter_mut().take_while(|one| one.index <= last) {
            one.flushed.get_or_insert(now);
        }
    }

    /// Returns the times of an entry whose apply starts at `begun`, and forgets the entry and all earlier
    /// ones.
    pub fn take(&self, index: u64, begun: Instant) -> EntryStages {
        let mut kept = self.0.lock();
        while kept.front().is_some_and(|oldest| oldest.index < index) {
            kept.pop_front();
        }
        match kept.front() {
            Some(&Arrived { index: of, at, flushed }) if of == index => {
                kept.pop_front();
                EntryStages { index, appended: at, flushed, begun, known: true }
            }
            _ => EntryStages { index, appended: begun, flushed: None, begun, known: false },
        }
    }
}

impl EntryStages {
    /// Returns the duration of this node's flush; `None` if the entry was applied before the flush ended.
    pub fn flush(&self) -> Option<Duration> {
        self.flushed.map(|flushed| flushed.saturating_since(self.appended))
    }

    /// Returns the time from the flush to the start of the apply.
    pub fn quorum(&self) -> Duration {
        self.begun.saturating_since(self.flushed.unwrap_or(self.appended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_own_times_and_is_taken_once() {
        let times = EntryTimes::default();
        times.appended(1, 2);
        times.flushed(1);
        times.appended(3, 3);
        let stages: Vec<EntryStages> = [1, 2, 3, 3].map(|index| times.take(index, time::now())).to_vec();
        assert_eq!(stages.iter().map(|it| it.known).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(stages[0].flushed.is_some() && stages[1].flushed.is_none(), "{stages:?}");
        assert!(stages.iter().all(|it| it.appended <= it.begun));
        let EntryStages { appended, begun, .. } = stages[0];
        let whole = stages[0].flush().unwrap() + stages[0].quorum();
        assert_eq!(whole, begun.saturating_since(appended), "no time is between two stages");
        assert_eq!(stages[1].quorum(), stages[1].begun.saturating_since(stages[1].appended));
    }

    #[test]
    fn a_replaced_entry_loses_its_old_times() {
        let times = EntryTimes::default();
        times.appended(1, 5);
        times.flushed(5);
        times.appended(3, 3);
        assert!(times.take(2, time::now()).flushed.is_some());
        assert!(times.take(3, time::now()).flushed.is_none(), "the new one is not on disk");
        assert!(!times.take(4, time::now()).known, "it was cut off");
    }

    #[test]
    fn only_the_newest_entries_have_times() {
        let times = EntryTimes::default();
        times.appended(1, 10_000);
        (10_001..10_100).for_each(|index| times.appended(index, index));
        assert_eq!(times.0.lock().len(), KEPT_MAX);
        assert!(!times.take(9_000, time::now()).known);
        assert!(times.take(10_099, time::now()).known);
        assert!(times.0.lock().is_empty(), "what was overtaken is forgotten");
    }
}
