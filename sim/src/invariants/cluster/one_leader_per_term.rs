//! one-leader-per-term: only the leader of a leadership creates the entries. In openraft two nodes may lead
//! in one term, the node with the higher id after the node with the lower id; so term and node together
//! identify a leadership. Forbidden are an entry in another leader's name, and two entries of one leader at
//! one index.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::{NodeFact, Position};
use crate::history::{Book, Fact, Index};

/// Entries of each leadership.
#[derive(Default)]
pub struct OneLeaderPerTerm {
    /// Last index at which each leader appended an entry of its own.
    made: BTreeMap<(u64, NodeId), Index>,
}

impl OneLeaderPerTerm {
    fn appended(&mut self, node: NodeId, entry: Position) -> Result<(), String> {
        // Every node that bootstraps a cluster writes the first membership, in no leader's name.
        if entry.term == 0 {
            return Ok(());
        }
        let leadership = (entry.term, entry.leader);
        if node == entry.leader {
            let last = self.made.entry(leadership).or_insert(entry.index);
            *last = (*last).max(entry.index);
            return Ok(());
        }
        match self.made.get(&leadership) {
            Some(last) if entry.index <= *last => Ok(()),
            made => Err(format!("node {node} has {entry:?}, and its leader has made {made:?} at most")),
        }
    }
}

impl Invariant for OneLeaderPerTerm {
    fn name(&self) -> &'static str {
        "one-leader-per-term"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { node, what: NodeFact::Appended { entry, .. }, .. } => self.appended(*node, *entry),
            _ => Ok(()),
        }
    }
}
