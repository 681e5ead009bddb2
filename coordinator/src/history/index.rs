//! Where in the open slice the records of a lock and of a session are.
//!
//! Kept in memory while the slice is written (it is bounded, so this is), and written into it, in order, when it is
//! sealed: an entry costs sled some 230 bytes and 10 µs, so there is one for many records and not one for each.

use std::collections::BTreeMap;

use rowlock_proto::SessionId;

use super::record::{Entry, Key};

/// The keys of each lock, each session, and all gaps, oldest first.
#[derive(Debug, Default)]
pub(super) struct Index {
    locks: BTreeMap<Box<str>, Vec<Key>>,
    sessions: BTreeMap<SessionId, Vec<Key>>,
    gaps: Vec<Key>,
}

impl Index {
    /// Takes note of a lock's record.
    pub fn note(&mut self, lock: &str, session: SessionId, key: Key) {
        match self.locks.get_mut(lock) {
            Some(keys) => insert(keys, key),
            None => drop(self.locks.insert(lock.into(), vec![key])),
        }
        insert(self.sessions.entry(session).or_default(), key);
    }

    /// Takes note of a gap.
    pub fn note_gap(&mut self, key: Key) {
        insert(&mut self.gaps, key);
    }

    /// Takes note of an entry that was read back.
    pub fn note_entry(&mut self, entry: &Entry<'_>, key: Key) {
        match entry {
            Entry::Lock(record) => self.note(&record.lock, record.session, key),
            Entry::Gap(_) => self.note_gap(key),
        }
    }

    /// A lock's keys.
    pub fn of_lock(&self, lock: &str) -> &[Key] {
        self.locks.get(lock).map_or(&[], Vec::as_slice)
    }

    /// A session's keys.
    pub fn of_session(&self, session: SessionId) -> &[Key] {
        self.sessions.get(&session).map_or(&[], Vec::as_slice)
    }

    /// The keys of gaps.
    pub fn gaps(&self) -> &[Key] {
        &self.gaps
    }

    /// All locks with their keys, in order.
    pub fn locks(&self) -> impl Iterator<Item = (&str, &[Key])> {
        self.locks.iter().map(|(lock, keys)| (&**lock, keys.as_slice()))
    }

    /// All sessions with their keys, in order.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &[Key])> {
        self.sessions.iter().map(|(session, keys)| (*session, keys.as_slice()))
    }
}

/// Keys come in order, but for gaps and for what is recorded a second time.
fn insert(keys: &mut Vec<Key>, key: Key) {
    match keys.last() {
        Some(last) if *last >= key => {
            if let Err(at) = keys.binary_search(&key) {
                keys.insert(at, key);
            }
        }
        _ => keys.push(key),
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::Zxid;

    use super::*;

    fn key(zxid: i64) -> Key {
        Key { time_ms: zxid, zxid: Zxid(zxid), ordinal: 0 }
    }

    #[test]
    fn keys_stay_in_order_and_single_however_they_come() {
        let mut index = Index::default();
        for zxid in [1, 2, 5, 3, 5, 4] {
            index.note("/l", SessionId(7), key(zxid));
        }
        let expected: Vec<Key> = (1..=5).map(key).collect();
        assert_eq!(index.of_lock("/l"), expected);
        assert_eq!(index.of_session(SessionId(7)), expected);
        assert!(index.of_lock("/other").is_empty());
    }
}
