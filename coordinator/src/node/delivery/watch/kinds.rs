//! Kinds of watches, as a set: a connection has at most one watch of each kind on a path.

use std::ops::BitOr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    /// One-shot, set by getData and exists: fires when the znode is created, changed or deleted.
    pub const DATA: Kinds = Kinds(1);
    /// One-shot, set by getChildren: fires when the list of children changes or the znode is deleted.
    pub const CHILD: Kinds = Kinds(2);
    /// Set by addWatch: fires on both of the above, and stays.
    pub const PERSISTENT: Kinds = Kinds(4);
    /// Set by addWatch: fires on creation, change and deletion of the znode and all its descendants, and
    /// stays.
    pub const RECURSIVE: Kinds = Kinds(8);
    pub const ALL: Kinds = Kinds(15);

    pub fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    pub fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    /// Returns whether the sets share a kind.
    pub fn intersects(self, other: Kinds) -> bool {
        !self.and(other).is_empty()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of kinds, which is the number of watches in the set.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl BitOr for Kinds {
    type Output = Kinds;
    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}
