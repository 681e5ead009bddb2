//! Sort key of a position in a queue.

use std::cmp::Ordering;
use std::sync::Arc;

use rowlock_proto::Zxid;

use crate::sequence;

/// A position in a queue. The key shares the path with the session's list of ephemerals.
///
/// The order is the order of creation. Positions made by one multi have one czxid; their numbers give the
/// order, since the lock's znode counts its creates one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The czxid of the queue znode; the fencing token.
    pub czxid: Zxid,
    pub path: Arc<str>,
}

/// A key for lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRef<'a> {
    pub czxid: Zxid,
    pub path: &'a str,
}

impl Key {
    /// Returns a key in front of all possible positions.
    pub(super) fn before_all() -> Key {
        Key { czxid: Zxid(i64::MIN), path: Arc::from("") }
    }

    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { czxid: self.czxid, path: &self.path }
    }
}

impl Ord for KeyRef<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |key: &Self| sequence::ordinal(key.path);
        self.czxid
            .cmp(&other.czxid)
            // The usual case ends here: one command makes one position.
            .then_with(|| {
                if self.path == other.path { Ordering::Equal } else { number(self).cmp(&number(other)) }
            })
            .then_with(|| self.path.cmp(other.path))
    }
}

impl PartialOrd for KeyRef<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().cmp(&other.as_ref())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the path of a queue znode.
pub(crate) fn queue_path(lock: &str, name: &str) -> String {
    rowlock_proto::path::join(lock, name)
}
