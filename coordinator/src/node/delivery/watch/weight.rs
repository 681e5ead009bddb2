//! Weight of watches, and bounds on the weight per connection. Pure.
//!
//! The table keeps a path of several connections once and counts the path for each connection, so that the
//! weight of a connection's watches does not depend on the others.

use crate::limits;

/// Approximate cost of a watched path beside its bytes: the entries in the table's indexes.
pub(super) const OVERHEAD: usize = 256;

/// Returns a connection's cost of a path, for all kinds of watches together.
pub(super) fn weight(path: &str) -> usize {
    OVERHEAD + path.len()
}

/// Bounds on the weight of a node's watches.
#[derive(Clone, Copy, Debug)]
pub struct WatchBounds {
    pub connection: usize,
    /// Total weight from which each connection may have only `small`.
    pub all: usize,
    /// Enough for a client that waits for a few locks.
    pub small: usize,
}

impl Default for WatchBounds {
    fn default() -> Self {
        WatchBounds {
            connection: limits::WATCH_BYTES_PER_CONNECTION,
            all: limits::WATCH_BYTES_ALL,
            small: limits::WATCH_BYTES_SMALL,
        }
    }
}

impl WatchBounds {
    /// Returns whether a connection with weight `own` may add `more`, at a total of `all`.
    pub(super) fn has_room(&self, own: usize, all: usize, more: usize) -> bool {
        more == 0 || own + more <= if all < self.all { self.connection } else { self.small }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_gets_the_small_bound_only_under_a_full_total() {
        let bounds = WatchBounds { connection: 1_000, all: 5_000, small: 100 };
        for (own, more, while_little, while_much) in
            [(0, 100, true, true), (0, 101, true, false), (99, 2, true, false), (900, 101, false, false)]
        {
            let room = (bounds.has_room(own, 4_999, more), bounds.has_room(own, 5_000, more));
            assert_eq!(room, (while_little, while_much), "{own} and {more}");
        }
    }
}
