//! What watches weigh, and how much of it a connection may have. Pure.
//!
//! A path that several connections watch is kept once and counts for each of them, so that one connection's
//! watches weigh the same whatever others do.

use rowlock_types::limits;

/// What a watched path costs beside its bytes: its places in the indexes of the table, about.
pub(super) const OVERHEAD: usize = 256;

/// What one connection pays for one path, however many kinds of watches it has there.
pub(super) fn weight(path: &str) -> usize {
    OVERHEAD + path.len()
}

/// How much the watches of a node may weigh.
#[derive(Clone, Copy, Debug)]
pub struct WatchBounds {
    pub connection: usize,
    /// From so much of all connections on, each may have `small`.
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
    /// Whether a connection whose watches weigh `own` takes `more`, when those of all of them weigh `all`.
    pub(super) fn has_room(&self, own: usize, all: usize, more: usize) -> bool {
        more == 0 || own + more <= if all < self.all { self.connection } else { self.small }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_has_much_and_a_little_only_when_all_of_them_have_much() {
        let bounds = WatchBounds { connection: 1_000, all: 5_000, small: 100 };
        for (own, more, while_little, while_much) in
            [(0, 100, true, true), (0, 101, true, false), (99, 2, true, false), (900, 101, false, false)]
        {
            let room = (bounds.has_room(own, 4_999, more), bounds.has_room(own, 5_000, more));
            assert_eq!(room, (while_little, while_much), "{own} and {more}");
        }
    }
}
