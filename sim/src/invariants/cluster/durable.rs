//! durable: a write is in the log when a node acknowledges the write, and stays there. At the end of a run,
//! with all nodes back, every running node has applied all entries that any node had applied a second before,
//! whatever processes were killed or lost power. (committed-never-changes and replica-equality check that all
//! nodes applied the same entries.)

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::node::NodeFact;
use crate::history::{Book, Fact, Index};

/// Progress of each node's state.
#[derive(Default)]
pub struct Durable {
    matching: Matching,
    last: Index,
    /// Value of `last` at the last two `Passed` facts: later entries may still be under way.
    due: [Index; 2],
    /// Last applied index of each running node.
    applied: BTreeMap<NodeId, Index>,
    /// Nodes that lost data, and the last applied index at that time: until a node has caught up to this
    /// index, the node may be running without being admitted to the cluster.
    forgot: BTreeMap<NodeId, Index>,
    /// Last applied index when a node dropped its state: a later leader restarts the cluster, and if nothing
    /// more is applied before the restart, this life owes nothing.
    left: Option<Index>,
}

impl Durable {
    fn node(&mut self, node: NodeId, what: &NodeFact) {
        match what {
            NodeFact::Started => {
                self.applied.insert(node, Index(0));
            }
            NodeFact::Ended { .. } => {
                self.applied.remove(&node);
            }
            NodeFact::Applied { entry, .. } | NodeFact::Installed { entry: Some(entry), .. } => {
                self.applied.insert(node, entry.index);
                self.last = self.last.max(entry.index);
            }
            NodeFact::Opened { last: None, remembers: false, .. } => self.left = Some(self.last),
            NodeFact::Forgot => {
                self.forgot.insert(node, self.last);
            }
            _ => {}
        }
    }
}

impl Invariant for Durable {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { node, what, .. } => self.node(*node, what),
            Fact::Passed { .. } => self.due = [self.due[1], self.last],
            Fact::Settled if self.left != Some(self.last) => {
                let may_stay_away = |node: &NodeId, index: &Index| {
                    self.forgot.get(node).is_some_and(|forgot| index <= forgot)
                };
                let mut behind = self.applied.iter().filter(|(_, index)| **index < self.due[0]);
                if let Some((node, index)) = behind.find(|(node, index)| !may_stay_away(node, index)) {
                    return Err(format!(
                        "node {node} is at {index:?} in the end, and {:?} has been applied",
                        self.due[0]
                    ));
                }
            }
            _ => {}
        }
        match self.matching.observe(fact) {
            Matched::Answered(sent, Ok(answer)) if sent.logged.is_none() => Err(format!(
                "client {} was answered {answer:?} to {:?} of session {}, and no node has applied it",
                sent.client.0, sent.op, sent.session
            )),
            _ => Ok(()),
        }
    }
}
