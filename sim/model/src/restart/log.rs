//! A node's log, as a small value with cheap copies, comparisons and hashes.

use std::fmt;

/// Content of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// First entry of a leader that a quorum of remembering voters has elected.
    Blank,
    /// First entry of any other leader: all sessions end.
    Restart,
    /// Write of a znode that is no lock.
    Znode,
    /// Grant of the free or released lock.
    Grant,
    /// Change of the voters: adds the third node.
    Change,
}

const KINDS: [Kind; 5] = [Kind::Blank, Kind::Restart, Kind::Znode, Kind::Grant, Kind::Change];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub term: u8,
    pub kind: Kind,
}

/// Bits of an entry: three of the kind, three of the term. Terms begin with 1, so no entry is 0.
const BITS: u32 = 6;
const ENTRY: u64 = (1 << BITS) - 1;

/// Log of at most ten entries, the oldest in the lowest bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Log(u64);

impl Log {
    pub fn length(self) -> u8 {
        ((u64::BITS - self.0.leading_zeros()).div_ceil(BITS)) as u8
    }

    /// Returns the entry at a position that counts from 0.
    pub fn get(self, at: u8) -> Option<Entry> {
        let bits = (self.0 >> (u32::from(at) * BITS)) & ENTRY;
        (bits != 0).then(|| Entry { term: (bits >> 3) as u8, kind: KINDS[(bits & 7) as usize] })
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = (u8, Entry)> + Clone {
        (0..self.length()).filter_map(move |at| Some((at, self.get(at)?)))
    }

    /// Returns the term of the last entry, 0 without an entry.
    pub fn last_term(self) -> u8 {
        self.iter().next_back().map_or(0, |(_, entry)| entry.term)
    }

    /// Returns the order in which Raft's voters compare the logs of candidates.
    pub fn rank(self) -> (u8, u8) {
        (self.last_term(), self.length())
    }

    pub fn push(&mut self, entry: Entry) {
        let at = u32::from(self.length()) * BITS;
        assert!(at + BITS <= u64::BITS && (1..8).contains(&entry.term), "the bounds of the model leave room");
        self.0 |= (u64::from(entry.term) << 3 | entry.kind as u64) << at;
    }

    /// Returns the first `len` entries.
    pub fn prefix(self, len: u8) -> Log {
        Log(self.0 & ((1 << (u32::from(len) * BITS)) - 1))
    }

    /// Returns the length of the common beginning.
    pub fn common(self, with: Log) -> u8 {
        let same = ((self.0 ^ with.0).trailing_zeros() / BITS) as u8;
        same.min(self.length()).min(with.length())
    }

    pub fn count(self, counts: impl Fn(Entry) -> bool) -> u8 {
        self.iter().filter(|(_, entry)| counts(*entry)).count() as u8
    }

    /// Returns the position of the last such entry.
    pub fn last(self, is: impl Fn(Entry) -> bool) -> Option<u8> {
        self.iter().rev().find(|(_, entry)| is(*entry)).map(|(at, _)| at)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(_, entry)| entry)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gives_back_its_entries() {
        let entries: Vec<Entry> = (0..10)
            .map(|at| Entry { term: at / 2 + 1, kind: KINDS[usize::from(at) % KINDS.len()] })
            .collect();
        let mut log = Log::default();
        for (at, entry) in entries.iter().enumerate() {
            assert_eq!((usize::from(log.length()), log.get(log.length())), (at, None));
            log.push(*entry);
        }
        assert_eq!(log.iter().map(|(_, entry)| entry).collect::<Vec<_>>(), entries);
        assert_eq!((log.rank(), log.prefix(3).rank(), Log::default().rank()), ((5, 10), (2, 3), (0, 0)));
        let mut other = log.prefix(3);
        assert_eq!((other.common(log), log.common(other), log.common(log)), (3, 3, 10));
        other.push(Entry { term: 7, kind: Kind::Grant });
        assert_eq!((other.common(log), other.last(|entry| entry.kind == Kind::Grant)), (3, Some(3)));
    }
}
