//! The one log that all replicas apply, as if Raft had agreed on it, without Raft.

use std::collections::VecDeque;

use rowlock_state::command::Batch;

use crate::history::Index;

/// The entries that have not been purged.
#[derive(Default)]
pub struct Log {
    purged: u64,
    entries: VecDeque<Batch>,
}

impl Log {
    /// Adds an entry.
    pub fn append(&mut self, batch: Batch) -> Index {
        self.entries.push_back(batch);
        self.last()
    }

    /// Position of the last entry; 0 without one.
    pub fn last(&self) -> Index {
        Index(self.purged + self.entries.len() as u64)
    }

    /// Position up to which entries are gone.
    pub fn purged(&self) -> Index {
        Index(self.purged)
    }

    /// The entry at `index`, unless it is purged or not there yet.
    pub fn get(&self, index: Index) -> Option<&Batch> {
        let offset = index.0.checked_sub(self.purged + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// Drops the entries up to `upto`.
    pub fn purge(&mut self, upto: Index) {
        assert!(upto <= self.last(), "only entries that exist are purged");
        while self.purged < upto.0 {
            self.entries.pop_front();
            self.purged += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_stay_when_the_log_is_purged() {
        let mut log = Log::default();
        for time_ms in 1..=3 {
            log.append(Batch { time_ms, ..Batch::default() });
        }
        log.purge(Index(2));
        assert_eq!((log.purged(), log.last()), (Index(2), Index(3)));
        assert_eq!(log.get(Index(2)), None);
        assert_eq!(log.get(Index(3)).unwrap().time_ms, 3);
        assert_eq!(log.get(Index(4)), None);
    }
}
