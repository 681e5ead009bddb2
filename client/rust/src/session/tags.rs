//! The numbers of writes that take effect once.
//!
//! Each tagged write has an id of its own for the life of the session, and keeps it however often it is sent.
//! With every write goes the highest id up to which all are answered, so that the servers may forget those
//! outcomes.

use std::collections::VecDeque;

use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};

use crate::limits::TAGGED_IN_FLIGHT;

/// The ids of one session.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    last: u64,
    /// Tags of writes without an answer, rising.
    ///
    /// Invariant: at most [`TAGGED_IN_FLIGHT`], since the servers keep this many outcomes and refuse more.
    unanswered: VecDeque<u64>,
}

impl Tags {
    /// The next id; `None`: too many are unanswered, wait for one of them.
    pub(crate) fn take(&mut self) -> Option<u64> {
        // Counted from the oldest unanswered one: answered ones behind it are kept by the servers as well.
        let span = self.last - self.acked();
        let is_full = !self.unanswered.is_empty() && choice::taken(Choice::TagsFull, 8);
        if decides!("write-numbers-are-used-up", span >= TAGGED_IN_FLIGHT || is_full) {
            return None;
        }
        self.last += 1;
        self.unanswered.push_back(self.last);
        Some(self.last)
    }

    /// Records that the outcome is known, or no longer needed.
    pub(crate) fn answered(&mut self, id: u64) {
        if let Ok(at) = self.unanswered.binary_search(&id) {
            self.unanswered.remove(at);
        }
    }

    /// All ids up to this one are answered.
    pub(crate) fn acked(&self) -> u64 {
        if mutant::is(Mutant::AckUnanswered) {
            return self.last.saturating_sub(1);
        }
        self.unanswered.front().map_or(self.last, |oldest| oldest - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_stops_below_the_oldest_unanswered_id() {
        let mut it = Tags::default();
        assert_eq!([it.take(), it.take(), it.take()], [Some(1), Some(2), Some(3)]);
        assert_eq!(it.acked(), 0);
        it.answered(2);
        assert_eq!(it.acked(), 0);
        it.answered(1);
        assert_eq!(it.acked(), 2);
        it.answered(3);
        assert_eq!((it.acked(), it.take()), (3, Some(4)));
    }

    #[test]
    fn no_more_ids_are_open_than_the_servers_keep_outcomes() {
        let mut it = Tags::default();
        let first = it.take().unwrap();
        while it.take().is_some() {}
        assert_eq!(it.last - it.acked(), TAGGED_IN_FLIGHT);
        it.answered(first + 1);
        assert_eq!(it.take(), None, "the oldest is what counts");
        it.answered(first);
        assert!(it.take().is_some());
    }
}
