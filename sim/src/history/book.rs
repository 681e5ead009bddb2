//! The book of locks: the queues as the log has made them so far, from the facts of the log. Checkers read
//! holders, tokens and waiters here, and keep none of their own.

use std::collections::BTreeMap;

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, SessionId};

use super::{Fact, Lock};

/// Position in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub session: SessionId,
    pub mode: Mode,
    pub is_held: bool,
}

/// Queues of all locks of a cluster.
#[derive(Default)]
pub struct Book {
    positions: BTreeMap<(Lock, FencingToken), Position>,
    newest: BTreeMap<Lock, FencingToken>,
}

impl Book {
    /// Records a fact. A new cluster begins with empty queues.
    pub fn record(&mut self, fact: &Fact) {
        match *fact {
            Fact::NewLife(_) => *self = Book::default(),
            Fact::Queued { lock, token, session, mode } => {
                self.positions.insert((lock, token), Position { session, mode, is_held: false });
                self.newest.insert(lock, token);
            }
            Fact::Entitled { lock, token, session, .. } => {
                let unknown = Position { session, mode: Mode::Exclusive, is_held: true };
                self.positions.entry((lock, token)).or_insert(unknown).is_held = true;
            }
            Fact::Converted { lock, token, mode } => {
                self.positions.entry((lock, token)).and_modify(|position| position.mode = mode);
            }
            Fact::Left { lock, token, .. } => drop(self.positions.remove(&(lock, token))),
            _ => {}
        }
    }

    pub fn position(&self, lock: Lock, token: FencingToken) -> Option<Position> {
        self.positions.get(&(lock, token)).copied()
    }

    /// Iterates over the positions in a lock's queue, from the front.
    pub fn queue(&self, lock: Lock) -> impl Iterator<Item = (FencingToken, Position)> {
        let of_lock = (lock, FencingToken(i64::MIN))..=(lock, FencingToken(i64::MAX));
        self.positions.range(of_lock).map(|((_, token), position)| (*token, *position))
    }

    /// Iterates over the holders of all locks.
    pub fn holders(&self) -> impl Iterator<Item = (Lock, FencingToken)> {
        self.positions.iter().filter(|(_, position)| position.is_held).map(|(key, _)| *key)
    }

    pub fn is_held(&self, lock: Lock, token: FencingToken) -> bool {
        self.position(lock, token).is_some_and(|position| position.is_held)
    }

    /// Returns the token of the last position that entered the lock's queue.
    pub fn newest(&self, lock: Lock) -> Option<FencingToken> {
        self.newest.get(&lock).copied()
    }
}
