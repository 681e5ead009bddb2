//! The logs of the nodes, as far as their observers tell.

use std::collections::BTreeMap;

use crate::history::Index;
use crate::history::node::{NodeFact, Position};

/// One node's log.
#[derive(Debug, Default)]
pub(super) struct NodeLog {
    entries: BTreeMap<Index, Position>,
    /// A snapshot covers everything up to here.
    base: Option<Position>,
}

impl NodeLog {
    /// Takes note of what happened to it.
    pub(super) fn observe(&mut self, what: &NodeFact) {
        match what {
            NodeFact::Opened { purged } => {
                self.entries.clear();
                self.base = *purged;
            }
            NodeFact::Appended { entry, .. } => {
                self.entries.split_off(&entry.index);
                self.entries.insert(entry.index, *entry);
            }
            NodeFact::Truncated { after } => {
                self.entries.split_off(&Index(after.0 + 1));
            }
            NodeFact::Installed { entry: Some(entry), .. } => {
                // A log that is not the snapshot's own past is thrown away.
                if self.entries.get(&entry.index).is_some_and(|known| known != entry) {
                    self.entries.clear();
                }
                self.base = self.base.max(Some(*entry));
            }
            _ => {}
        }
    }

    /// The entry at an index, if it is in the log.
    pub(super) fn get(&self, index: Index) -> Option<Position> {
        let at_base = self.base.filter(|base| base.index == index);
        self.entries.get(&index).copied().or(at_base)
    }

    /// Whether the log, or the snapshot that it begins behind, has this entry.
    pub(super) fn has(&self, entry: Position) -> bool {
        self.get(entry.index) == Some(entry) || self.base.is_some_and(|base| base.index >= entry.index)
    }

    /// The entries behind an index.
    pub(super) fn behind(&self, index: Index) -> impl Iterator<Item = Position> {
        self.entries.range(Index(index.0 + 1)..).map(|(_, entry)| *entry)
    }
}
