//! logs-never-go-back: entries acknowledged to a leader are on the node's disk at the next start, in the log
//! or the snapshot, unless a leader has truncated the entries since, or the node knows that it has forgotten:
//! the leader has counted these entries for a quorum. Data removed from the disk by the simulation is exempt.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact, Index};

/// Last index that each node has acknowledged.
#[derive(Default)]
pub struct LogsNeverGoBack {
    reported: BTreeMap<NodeId, Index>,
    /// Last index in the log of a started node, and a larger index that the node has reported: the node's
    /// snapshot, loaded next, must cover the larger index.
    owed: BTreeMap<NodeId, (Index, Index)>,
}

impl Invariant for LogsNeverGoBack {
    fn name(&self) -> &'static str {
        "logs-never-go-back"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        if matches!(what, NodeFact::Started | NodeFact::Ended { .. }) {
            self.owed.remove(node);
        } else if let Some((last, told)) = self.owed.remove(node) {
            // A node reports its log's entries before its snapshot.
            match what {
                NodeFact::Appended { .. } => drop(self.owed.insert(*node, (last, told))),
                NodeFact::Installed { entry: Some(entry), .. } if entry.index >= told => {}
                _ => {
                    return Err(format!(
                        "node {node} is started again with a log up to {last:?}, and had told of {told:?}"
                    ));
                }
            }
        }
        match what {
            NodeFact::Acknowledged { upto } => {
                let told = self.reported.entry(*node).or_default();
                *told = upto.index.max(*told);
            }
            NodeFact::Truncated { after } => {
                let told = self.reported.entry(*node).or_default();
                *told = (*told).min(*after);
            }
            NodeFact::Forgot => drop(self.reported.remove(node)),
            NodeFact::Opened { last, remembers, .. } => {
                let told = self.reported.entry(*node).or_default();
                let last = last.map_or(Index(0), |last| last.index);
                if !remembers {
                    *told = last.min(*told);
                } else if last < *told {
                    self.owed.insert(*node, (last, *told));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
