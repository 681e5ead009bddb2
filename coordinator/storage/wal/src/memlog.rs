//! Log in memory, from the purge point on: the source of all reads, and the result of recovery. Pure.
//!
//! Invariant: the entries' indexes are consecutive, and the last entry's position is `checkpoint.last`.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

use super::log::record::{Checkpoint, Record};
use crate::entry::{Entry, LogId, Vote};
use rowlock_env::decides;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemLog {
    checkpoint: Checkpoint,
    entries: VecDeque<Entry>,
    /// Total payload bytes of `entries`.
    bytes: usize,
}

/// Refusal of an entry without its predecessor.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {found} follows entry {last}")]
pub struct Gap {
    pub found: u64,
    /// Index of the last entry in the log.
    pub last: u64,
}

impl MemLog {
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns the total payload bytes of the entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the index up to which a purge leaves at most `keep_bytes` of payloads, or `None` if the
    /// payloads are within the bound.
    pub fn purge_point(&self, keep_bytes: usize) -> Option<u64> {
        let mut kept = 0;
        self.entries.iter().rev().find_map(|entry| {
            kept += entry.payload.bytes();
            (kept > keep_bytes).then_some(entry.log_id.index)
        })
    }

    pub fn set_vote(&mut self, vote: Vote) {
        self.checkpoint.vote = Some(vote);
    }

    pub fn set_committed(&mut self, committed: Option<LogId>) {
        self.checkpoint.committed = committed;
    }

    /// Appends an entry. An empty log may begin at any index.
    pub fn append(&mut self, entry: Entry) -> Result<(), Gap> {
        let found = entry.log_id.index;
        if let Some(last) = self.checkpoint.last
            && found != last.index + 1
        {
            return Err(Gap { found, last: last.index });
        }
        self.checkpoint.last = Some(entry.log_id);
        self.bytes += entry.payload.bytes();
        self.entries.push_back(entry);
        self.check();
        Ok(())
    }

    fn check(&self) {
        let index = |entry: Option<&Entry>| entry.map(|entry| entry.log_id.index);
        let (first, last) = (index(self.entries.front()), index(self.entries.back()));
        let Some((first, last)) = first.zip(last) else {
            assert_eq!(self.bytes, 0, "no entry is stored, and bytes of one are counted");
            return;
        };
        assert_eq!(last - first + 1, self.entries.len() as u64, "an entry between two others is missing");
        let end = self.checkpoint.last.map(|log_id| log_id.index);
        assert_eq!(end, Some(last), "the log ends with its last entry");
    }

    /// Removes the entries behind `after`, or all entries for `None`.
    pub fn truncate_after(&mut self, after: Option<LogId>) {
        let keep = after.map_or(0, |log_id| log_id.index + 1);
        while self
            .entries
            .back()
            .is_some_and(|entry| decides!("memory-cuts-entry", entry.log_id.index >= keep))
        {
            self.bytes -= self.entries.pop_back().map_or(0, |entry| entry.payload.bytes());
        }
        self.checkpoint.update(&Record::Truncate(after));
        let back = self.entries.back().map(|entry| entry.log_id.index);
        assert!(back.is_none_or(|last| last < keep), "an entry is left that was cut off");
        self.check();
    }

    /// Removes the entries up to `upto`, inclusive. `upto` may lie behind the end (after installing a
    /// snapshot).
    pub fn purge(&mut self, upto: LogId) {
        while self
            .entries
            .front()
            .is_some_and(|entry| decides!("memory-purges-entry", entry.log_id.index <= upto.index))
        {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry.payload.bytes());
        }
        self.checkpoint.update(&Record::Purge(upto));
        let front = self.entries.front().map(|entry| entry.log_id.index);
        assert!(front.is_none_or(|first| first > upto.index), "an entry is left that was purged");
        self.check();
    }

    /// Iterates over the entries with an index in `range`.
    pub fn range(&self, range: &impl RangeBounds<u64>) -> impl Iterator<Item = &Entry> {
        let first = self.entries.front().map_or(0, |entry| entry.log_id.index);
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let position = |index: u64| {
            usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(self.entries.len())
        };
        let (from, to) = (position(start), position(end));
        let found = self.entries.range(from..to.max(from));
        debug_assert!(
            found.clone().all(|entry| range.contains(&entry.log_id.index)),
            "an entry is given that was not asked for"
        );
        found
    }

    /// Returns the first entries of `range` with at most `max_bytes` of payloads, but at least one entry of a
    /// non-empty range.
    pub fn limited(&self, range: &impl RangeBounds<u64>, max_bytes: usize) -> Vec<Entry> {
        let (mut bytes, mut found) = (0, Vec::new());
        for entry in self.range(range) {
            bytes += entry.payload.bytes();
            if decides!("read-has-enough-bytes", bytes > max_bytes && !found.is_empty()) {
                break;
            }
            found.push(entry.clone());
        }
        let follows = |two: &[Entry]| two[0].log_id.index + 1 == two[1].log_id.index;
        debug_assert!(found.windows(2).all(follows), "an entry between two others is missing");
        found
    }

    pub fn replay(&mut self, record: Record) -> Result<(), Gap> {
        match record {
            Record::Entry(entry) => self.append(entry)?,
            Record::Vote(vote) => self.set_vote(vote),
            Record::Committed(log_id) => self.set_committed(Some(log_id)),
            Record::Purge(log_id) => self.purge(log_id),
            Record::Truncate(after) => self.truncate_after(after),
            Record::Mark(_) => {}
            // Only the oldest segment's checkpoint is new; later checkpoints repeat the replayed state.
            Record::Checkpoint(checkpoint) if self.checkpoint == Checkpoint::default() => {
                self.checkpoint = checkpoint;
            }
            Record::Checkpoint(_) => {}
        }
        Ok(())
    }

    /// Returns the first missing index of a fully replayed log, if any.
    pub fn missing_from(&self) -> Option<u64> {
        let wanted = self.checkpoint.purged.map_or(0, |purged| purged.index + 1);
        let found = self.entries.front().map(|entry| entry.log_id.index);
        let end = self.checkpoint.last.map_or(0, |last| last.index + 1);
        (wanted < found.unwrap_or(end)).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, log_id, vote};

    fn filled(range: std::ops::Range<u64>) -> MemLog {
        let mut log = MemLog::default();
        for index in range {
            log.append(entry(1, index, b"0123456789")).expect("continues");
        }
        log
    }

    fn indexes(log: &MemLog) -> Vec<u64> {
        log.entries().map(|entry| entry.log_id.index).collect()
    }

    #[test]
    fn entries_continue_the_log() {
        let mut log = filled(0..3);
        assert_eq!(log.append(entry(1, 4, b"")), Err(Gap { found: 4, last: 2 }));
        assert_eq!(log.checkpoint().last, Some(log_id(1, 2)));
    }

    #[test]
    fn payload_bytes_are_counted_and_bounded_by_the_purge_point() {
        let mut log = filled(0..10);
        assert_eq!(log.bytes(), 100);
        assert_eq!(log.purge_point(100), None);
        assert_eq!(log.purge_point(35), Some(6), "the entries 7, 8 and 9 stay");
        assert_eq!(log.purge_point(0), Some(9));
        log.truncate_after(Some(log_id(1, 7)));
        assert_eq!(log.bytes(), 80);
        log.purge(log_id(1, 4));
        assert_eq!(log.bytes(), 30);
        log.purge(log_id(1, 20));
        assert_eq!((log.bytes(), log.purge_point(0)), (0, None));
    }

    #[test]
    fn a_truncated_log_ends_where_it_was_cut() {
        let mut log = filled(0..5);
        log.truncate_after(Some(log_id(1, 2)));
        assert_eq!((indexes(&log), log.checkpoint().last), (vec![0, 1, 2], Some(log_id(1, 2))));
        log.truncate_after(None);
        assert_eq!((indexes(&log), log.checkpoint().last), (vec![], None));
    }

    #[test]
    fn a_purge_within_the_log_keeps_its_end_and_one_beyond_moves_it() {
        let mut log = filled(0..5);
        log.purge(log_id(1, 2));
        assert_eq!((indexes(&log), log.checkpoint().last), (vec![3, 4], Some(log_id(1, 4))));
        log.purge(log_id(2, 9));
        assert_eq!((indexes(&log), log.checkpoint().last), (vec![], Some(log_id(2, 9))));
        log.append(entry(2, 10, b"")).expect("continues behind the snapshot");
    }

    #[test]
    fn ranges_outside_the_log_are_cut_to_it() {
        let mut log = filled(0..10);
        log.purge(log_id(1, 3));
        let get = |range: std::ops::Range<u64>| log.range(&range).map(|e| e.log_id.index).collect::<Vec<_>>();
        assert_eq!(get(0..100), [4, 5, 6, 7, 8, 9]);
        assert_eq!(get(5..7), [5, 6]);
        assert_eq!(get(0..3), [] as [u64; 0]);
        assert_eq!(get(20..30), [] as [u64; 0]);
        assert_eq!(log.range(&(..)).count(), 6);
        assert_eq!(log.range(&(8..=9)).count(), 2);
    }

    #[test]
    fn a_limited_read_returns_at_least_one_entry() {
        let log = filled(0..10);
        assert_eq!(log.limited(&(2..9), 25).len(), 2);
        assert_eq!(log.limited(&(2..9), 1).len(), 1);
        assert_eq!(log.limited(&(2..9), 1000).len(), 7);
    }

    #[test]
    fn a_missing_beginning_is_reported() {
        assert_eq!(filled(0..3).missing_from(), None);
        assert_eq!(filled(2..3).missing_from(), Some(0));
        let mut log = filled(2..9);
        log.purge(log_id(1, 1));
        assert_eq!(log.missing_from(), None);
        assert_eq!(MemLog::default().missing_from(), None);
    }

    #[test]
    fn a_checkpoint_replaces_recycled_segments() {
        let checkpoint = Checkpoint {
            vote: Some(vote(3, 1)),
            committed: Some(log_id(1, 80)),
            purged: None,
            last: Some(log_id(1, 99)),
        };
        let mut log = MemLog::default();
        for record in [
            Record::Checkpoint(checkpoint),
            Record::Truncate(Some(log_id(1, 50))),
            Record::Entry(entry(3, 51, b"")),
            Record::Purge(log_id(1, 50)),
        ] {
            log.replay(record).expect("follows");
        }
        assert_eq!((indexes(&log), log.missing_from()), (vec![51], None));
        assert_eq!(log.checkpoint().vote, Some(vote(3, 1)));
    }
}
