//! committed-never-changes: "If a server has applied a log entry at a given index, no other server will ever
//! apply a different log entry for the same index" (Raft, figure 3: state machine safety), nor will the same
//! server after a crash. A node applies entries in sequence, and never truncates an entry that any node has
//! applied.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::{NodeFact, Position};
use crate::history::{Book, Fact, Index, NodeLog};

/// Applied entries by position.
#[derive(Default)]
pub struct CommittedNeverChanges {
    /// First applied entry at each index, the hash, and the node.
    committed: BTreeMap<Index, (Position, u64, NodeId)>,
    /// Last entry in each node's state; no entry right after a start.
    applied: BTreeMap<NodeId, Index>,
    /// A restart after a power loss may take applied entries out of a log.
    forgets: bool,
}

impl CommittedNeverChanges {
    /// Creates the checker of nodes that acknowledge entries about locks before the flush, or of others.
    pub fn of(forgets: bool) -> Self {
        CommittedNeverChanges { forgets, ..Self::default() }
    }

    fn applied(&mut self, node: NodeId, entry: Position, hash: u64) -> Result<(), String> {
        let (first, first_hash, by) = *self.committed.entry(entry.index).or_insert((entry, hash, node));
        if (first, first_hash) != (entry, hash) {
            return Err(format!(
                "node {node} applied {entry:?} with content {hash:016x}, node {by} {first:?} with {first_hash:016x}"
            ));
        }
        let last = self.applied.insert(node, entry.index);
        // A started node does not report where its state begins, unless the node has a snapshot.
        if last.is_some_and(|last| entry.index.0 != last.0 + 1) {
            return Err(format!("node {node} applied {entry:?} behind {last:?}"));
        }
        Ok(())
    }

    fn installed(&mut self, node: NodeId, entry: Option<Position>) -> Result<(), String> {
        let Some(entry) = entry else { return Ok(()) };
        match self.committed.get(&entry.index) {
            Some((first, ..)) if *first == entry => {}
            Some((first, ..)) => {
                return Err(format!("node {node} has a snapshot up to {entry:?}, and {first:?} was applied"));
            }
            None => {
                return Err(format!("node {node} has a snapshot up to {entry:?}, which no node has applied"));
            }
        }
        let last = self.applied.insert(node, entry.index);
        if last.is_some_and(|last| entry.index < last) {
            return Err(format!("node {node} went back from {last:?} to a snapshot up to {entry:?}"));
        }
        Ok(())
    }

    fn truncated(&self, node: NodeId, after: Index, log: &NodeLog) -> Result<(), String> {
        let is_committed =
            |entry: &Position| self.committed.get(&entry.index).is_some_and(|one| one.0 == *entry);
        match log.behind(after).find(is_committed) {
            Some(entry) => Err(format!("node {node} took {entry:?} out of its log, which has been applied")),
            None => Ok(()),
        }
    }
}

impl Invariant for CommittedNeverChanges {
    fn name(&self) -> &'static str {
        "committed-never-changes"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        if let Fact::NewLife(new) = fact {
            let first = new.beginning;
            self.committed.insert(first.index, (first, 0, NodeId(0)));
        }
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        match what {
            NodeFact::Started => {
                self.applied.remove(node);
            }
            NodeFact::Applied { entry, hash, .. } => return self.applied(*node, *entry, *hash),
            NodeFact::Installed { entry, .. } => return self.installed(*node, *entry),
            NodeFact::Truncated { after } if !self.forgets => {
                return self.truncated(*node, *after, book.log(*node));
            }
            _ => {}
        }
        Ok(())
    }
}
