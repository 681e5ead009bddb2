//! Kinds of watches, as a set: a connection may have several on one path, at most one of each kind.

use std::ops::BitOr;

/// A set of kinds of watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const NONE: Kinds = Kinds(0);
    /// One-shot, left by getData and exists: the znode is created, changed or deleted.
    pub const DATA: Kinds = Kinds(1);
    /// One-shot, left by getChildren: the list of children changes or the znode is deleted.
    pub const CHILD: Kinds = Kinds(2);
    /// Left by addWatch: both of the above, and stays.
    pub const PERSISTENT: Kinds = Kinds(4);
    /// Left by addWatch: creation, change and deletion of the znode and of all its descendants, and stays.
    pub const RECURSIVE: Kinds = Kinds(8);
    pub const ALL: Kinds = Kinds(15);

    pub fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }

    pub fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    /// Has a kind in common with `other`.
    pub fn intersects(self, other: Kinds) -> bool {
        !self.and(other).is_empty()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of kinds, which is the number of watches that it stands for.
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
