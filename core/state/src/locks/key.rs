//! Which place in a queue: what the queue is ordered by.

use std::cmp::Ordering;
use std::sync::Arc;

use rowlock_proto::Zxid;

use crate::sequence;

/// A place in a queue. The path is shared with the session's list of ephemerals.
///
/// Places are ordered by their creation. Those that one multi makes have one czxid: their numbers say which
/// came first, since the lock's znode counts its creates one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The czxid of the queue znode; the fencing token.
    pub czxid: Zxid,
    pub path: Arc<str>,
}

/// A key to be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRef<'a> {
    pub czxid: Zxid,
    pub path: &'a str,
}

impl Key {
    /// Before every place that there may be.
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
            // Mostly there is nothing behind this: one command makes one place.
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
