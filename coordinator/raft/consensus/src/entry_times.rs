//! When the newest log entries came to this node, and when they were flushed: for the stages of requests
//! ([`rowlock_types::metrics::Stage`]). Nothing decides by it.
//!
//! Openraft's core and the log's thread note, the state machine takes; all of it once per entry, so that a
//! request costs nothing here. Bounded: of entries that wait for long behind others only the newest are kept,
//! and the others have no times.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};

/// More than a leader has in flight, and than a follower gets in one request.
const KEPT_MAX: usize = 128;

/// Entries that are in the log and not applied, ordered by index.
#[derive(Debug, Default)]
pub struct EntryTimes(Mutex<VecDeque<Arrived>>);

#[derive(Clone, Copy, Debug)]
struct Arrived {
    index: u64,
    at: Instant,
    flushed: Option<Instant>,
}

/// An entry that is about to be applied, and its way through this node so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryStages {
    pub index: u64,
    /// When it was in this node's log in memory; when its apply began, if that is not known (a log that is
    /// read at the start, a node that catches up).
    pub appended: Instant,
    /// When this node had it on disk, if that was before its apply began.
    pub flushed: Option<Instant>,
    /// When its apply began.
    pub begun: Instant,
    /// Whether all this was seen.
    pub known: bool,
}

impl EntryTimes {
    /// These entries are in the log now, and what had their places or later ones is not.
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

    /// Everything up to here is on disk.
    pub fn flushed(&self, last: u64) {
        let now = time::now();
        let mut kept = self.0.lock();
        for one in kept.iter_mut().take_while(|one| one.index <= last) {
            one.flushed.get_or_insert(now);
        }
    }

    /// An entry is applied from `begun` on. What is behind it is forgotten.
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
    /// How long a quorum waited for this node's flush, as far as this node knows; `None`: it did not.
    pub fn flush(&self) -> Option<Duration> {
        self.flushed.map(|flushed| flushed.saturating_since(self.appended))
    }

    /// How long it then took until the entry could be applied.
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
    fn an_entry_that_is_written_anew_is_not_taken_for_the_one_that_was_there() {
        let times = EntryTimes::default();
        times.appended(1, 5);
        times.flushed(5);
        times.appended(3, 3);
        assert!(times.take(2, time::now()).flushed.is_some());
        assert!(times.take(3, time::now()).flushed.is_none(), "the new one is not on disk");
        assert!(!times.take(4, time::now()).known, "it was cut off");
    }

    #[test]
    fn however_many_wait_only_the_newest_are_kept() {
        let times = EntryTimes::default();
        times.appended(1, 10_000);
        (10_001..10_100).for_each(|index| times.appended(index, index));
        assert_eq!(times.0.lock().len(), KEPT_MAX);
        assert!(!times.take(9_000, time::now()).known);
        assert!(times.take(10_099, time::now()).known);
        assert!(times.0.lock().is_empty(), "what was overtaken is forgotten");
    }
}
