//! Directory: the names visible to processes, the names on the medium, and the operations between the two.

use std::collections::BTreeMap;

use super::stats::Losses;
use super::tree::Ino;
use crate::rng::Rng;

#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    names: BTreeMap<String, Ino>,
    durable: BTreeMap<String, Ino>,
    /// Changes since the last flush of the names, oldest first.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Link(String, Ino),
    Unlink(String),
    /// One change, not two: a file system renames all or nothing.
    Rename(String, String),
}

impl Directory {
    /// Looks up a name.
    pub fn get(&self, name: &str) -> Option<Ino> {
        self.names.get(name).copied()
    }

    pub fn names(&self) -> &BTreeMap<String, Ino> {
        &self.names
    }

    pub fn durable(&self) -> &BTreeMap<String, Ino> {
        &self.durable
    }

    /// Adds a name for a file without a name.
    pub fn link(&mut self, name: &str, ino: Ino) {
        self.change(Change::Link(name.to_owned(), ino));
    }

    pub fn unlink(&mut self, name: &str) {
        self.change(Change::Unlink(name.to_owned()));
    }

    /// Renames an entry; an entry at the new name loses its name.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    /// Applies all changes to the medium. Returns whether an inode may have lost its last name.
    pub fn sync(&mut self) -> bool {
        let mut orphans = false;
        for change in self.pending.drain(..) {
            orphans |= !matches!(change, Change::Link(..));
            change.apply(&mut self.durable);
        }
        orphans
    }

    /// Keeps a prefix of the unflushed changes: a journal keeps their order.
    pub fn power_loss(&mut self, rng: &mut Rng, losses: &mut Losses) {
        if self.pending.is_empty() {
            return;
        }
        let kept = rng.below(self.pending.len() + 1);
        losses.names_kept += kept as u64;
        losses.names_lost += (self.pending.len() - kept) as u64;
        for change in self.pending.drain(..).take(kept) {
            change.apply(&mut self.durable);
        }
        self.names = self.durable.clone();
    }

    /// Returns all inodes with a name here, or with a name that a power loss may restore.
    pub fn referred(&self) -> impl Iterator<Item = Ino> {
        let pending = self.pending.iter().filter_map(|change| match change {
            Change::Link(_, ino) => Some(*ino),
            Change::Unlink(_) | Change::Rename(..) => None,
        });
        self.names.values().chain(self.durable.values()).copied().chain(pending)
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, Ino>) {
        match self {
            Change::Link(name, ino) => {
                names.insert(name.clone(), *ino);
            }
            Change::Unlink(name) => {
                names.remove(name);
            }
            Change::Rename(from, to) => {
                let ino = names.remove(from).expect("Invariant: the changes before gave it this name");
                names.insert(to.clone(), ino);
            }
        }
    }
}
