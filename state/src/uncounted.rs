//! Hashes that are not in the sums of the digest yet.
//!
//! A place in a queue mostly goes soon after it came, and the numbers of its lock's znode change with each.
//! To hash all of that is wasted where no digest is asked for in between. So what [`crate::locks`]
//! makes and changes one at a time is noted here, and counted when there is much of it. A
//! digest that is asked for before that gets the rest of the sum.
//!
//! Invariant: what has the hash 0 is in no sum, and is noted here. So the digest is the same whenever it is
//! counted.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_proto::Zxid;

use crate::arena::Number;
use crate::locks::KeyRef;
use crate::machine::Machine;

/// Beyond this many notes, what they are about is counted: after a few in tests, so that they see it happen.
const NOTES_MAX: usize = if cfg!(debug_assertions) { 16 } else { 1_024 };

/// A znode that may not be counted, and with it the place in a queue that it is, if it is one.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub node: Number,
    /// The czxid of the znode. Another znode may have its number by now.
    pub czxid: Zxid,
    pub path: Arc<str>,
    /// The lock in whose queue it is.
    pub lock: Option<Number>,
}

/// Changes that the digest's sums lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lack {
    /// The sum over znodes.
    pub znodes: u64,
    /// The sum over places in queues.
    pub places: u64,
}

impl Machine {
    /// Notes what has not been counted.
    #[inline]
    pub(crate) fn note(&mut self, note: Note) {
        self.uncounted.push(note);
        if self.uncounted.len() > NOTES_MAX {
            self.count_noted();
        }
    }

    #[cold]
    fn count_noted(&mut self) {
        let mut notes = std::mem::take(&mut self.uncounted);
        for note in notes.drain(..) {
            if !self.tree.is_node(note.node, note.czxid) {
                continue;
            }
            self.tree.count(note.node, &note.path);
            if let Some(lock) = note.lock {
                self.locks.count(lock, KeyRef { czxid: note.czxid, path: &note.path });
            }
        }
        // Its room is needed again.
        self.uncounted = notes;
    }

    /// Returns the changes that the sums lack now.
    pub(crate) fn lack(&self) -> Lack {
        let mut lack = Lack::default();
        let mut seen = BTreeSet::new();
        for Note { node, czxid, path, lock } in &self.uncounted {
            if self.tree.is_node(*node, *czxid) && seen.insert(*node) {
                lack.znodes = lack.znodes.wrapping_add(self.tree.uncounted_hash(*node, path));
                let place =
                    lock.map_or(0, |lock| self.locks.uncounted_hash(lock, KeyRef { czxid: *czxid, path }));
                lack.places = lack.places.wrapping_add(place);
            }
        }
        lack
    }
}
