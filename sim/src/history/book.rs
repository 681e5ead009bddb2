//! The book of a cluster: the queues of locks as the log has made them so far, the logs of all nodes, and the
//! memberships in them. Checkers read these here, and keep none of their own.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use rowlock_proto::lock::Mode;
use rowlock_proto::{FencingToken, NodeId, SessionId};

use super::node::{self, Members, NodeFact};
use super::{Fact, Lock, NodeLog};

/// Position in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub session: SessionId,
    pub mode: Mode,
    pub is_held: bool,
}

static EMPTY: LazyLock<NodeLog> = LazyLock::new(NodeLog::default);

#[derive(Default)]
pub struct Book {
    positions: BTreeMap<(Lock, FencingToken), Position>,
    newest: BTreeMap<Lock, FencingToken>,
    logs: BTreeMap<NodeId, NodeLog>,
    /// Memberships by the positions of their entries.
    members: BTreeMap<node::Position, Arc<Members>>,
}

impl Book {
    /// Records a fact. A new cluster begins with empty queues and logs.
    pub fn record(&mut self, fact: &Fact) {
        match *fact {
            Fact::Node { node, ref what, .. } => {
                if let NodeFact::Members { entry, members } = what {
                    self.members.entry(*entry).or_insert_with(|| members.clone());
                }
                self.logs.entry(node).or_default().observe(what);
            }
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

    /// Returns the log of a node.
    pub fn log(&self, node: NodeId) -> &NodeLog {
        self.logs.get(&node).unwrap_or(&EMPTY)
    }

    /// Returns the membership in an entry.
    pub fn members(&self, entry: node::Position) -> Option<&Arc<Members>> {
        self.members.get(&entry)
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
