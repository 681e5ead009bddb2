//! The logs of the nodes, as reported by their observers.

use std::collections::VecDeque;

use crate::history::Index;
use crate::history::node::{NodeFact, Position};

/// One node's log: entries without a gap.
#[derive(Debug, Default)]
pub(super) struct NodeLog {
    entries: VecDeque<Position>,
    /// A snapshot covers everything up to here.
    base: Option<Position>,
}

impl NodeLog {
    /// Takes note of what happened to it.
    pub(super) fn observe(&mut self, what: &NodeFact) {
        match what {
            NodeFact::Opened { purged, .. } => {
                self.entries.clear();
                self.base = *purged;
            }
            NodeFact::Appended { entry, .. } => {
                self.keep_before(entry.index);
                let follows = self.entries.back().is_none_or(|last| last.index.0 + 1 == entry.index.0);
                if !follows {
                    // The log continues after a snapshot that covers the gap.
                    self.entries.clear();
                }
                self.entries.push_back(*entry);
            }
            NodeFact::Truncated { after } => self.keep_before(Index(after.0 + 1)),
            NodeFact::Installed { entry: Some(entry), .. } => {
                // A log that is not the snapshot's own past is thrown away.
                if self.at(entry.index).is_some_and(|known| known != *entry) {
                    self.entries.clear();
                }
                self.base = self.base.max(Some(*entry));
            }
            _ => {}
        }
    }

    fn keep_before(&mut self, index: Index) {
        while self.entries.back().is_some_and(|last| last.index >= index) {
            self.entries.pop_back();
        }
    }

    fn at(&self, index: Index) -> Option<Position> {
        let first = self.entries.front()?.index.0;
        self.entries.get(usize::try_from(index.0.checked_sub(first)?).ok()?).copied()
    }

    /// The entry at an index, if it is in the log.
    pub(super) fn get(&self, index: Index) -> Option<Position> {
        self.at(index).or(self.base.filter(|base| base.index == index))
    }

    /// Whether the log, or the snapshot before it, has this entry.
    pub(super) fn has(&self, entry: Position) -> bool {
        self.get(entry.index) == Some(entry) || self.base.is_some_and(|base| base.index >= entry.index)
    }

    /// The entries after an index.
    pub(super) fn behind(&self, index: Index) -> impl Iterator<Item = Position> {
        self.entries.iter().rev().take_while(move |entry| entry.index > index).copied()
    }
}
