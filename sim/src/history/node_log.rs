//! Logs of the nodes, as their observers report.

use std::collections::VecDeque;

use super::Index;
use super::node::{NodeFact, Position};

/// Log of one node: entries without a gap.
#[derive(Debug, Default)]
pub struct NodeLog {
    entries: VecDeque<Position>,
    /// Last entry covered by a snapshot.
    base: Option<Position>,
}

impl NodeLog {
    /// Consumes a fact about this node's log.
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
                // A log that differs from the snapshot is discarded.
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

    /// Returns the entry at `index`, if the log has the entry.
    pub fn get(&self, index: Index) -> Option<Position> {
        self.at(index).or(self.base.filter(|base| base.index == index))
    }

    /// Reports whether the log, or the snapshot before the log, has this entry.
    pub fn has(&self, entry: Position) -> bool {
        self.get(entry.index) == Some(entry) || self.base.is_some_and(|base| base.index >= entry.index)
    }

    /// Returns the entries after `index`, the last one first.
    pub fn behind(&self, index: Index) -> impl Iterator<Item = Position> {
        self.entries.iter().rev().take_while(move |entry| entry.index > index).copied()
    }
}
