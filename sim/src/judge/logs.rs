//! Facts about the log of each node: applied entries, appended and cut entries, votes, snapshots.
//!
//! The folders do not show the order of events between nodes. So all applied entries come first: the checkers
//! then know each committed entry before any cut.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use super::evidence::Evidence;
use super::folder::{NodeLog, position};
use super::promises::Promises;
use crate::history::Fact;
use crate::history::node::{NodeFact, Position};

pub(super) fn observe(evidence: &Evidence, promises: &mut Promises) {
    applied(&evidence.nodes, promises);
    for log in &evidence.nodes {
        for step in &log.steps {
            report(promises, log.node, step.clone());
        }
        for file in &log.snapshots {
            let Some(entry) = file.meta().last_log_id.map(position) else { continue };
            // Only the entry itself shows whether it was committed.
            if evidence.nodes.iter().any(|log| log.committed.contains_key(&entry.index.0)) {
                report(promises, log.node, NodeFact::Started);
                report(promises, log.node, NodeFact::Installed { entry: Some(entry), digest: 0 });
            }
        }
    }
}

/// Reports the committed entries of all nodes in the order of their indexes.
fn applied(nodes: &[NodeLog], promises: &mut Promises) {
    let mut all: BTreeMap<u64, Vec<(NodeId, Position, u64)>> = BTreeMap::new();
    for log in nodes {
        for (index, entry) in &log.committed {
            all.entry(*index).or_default().push((log.node, entry.position, entry.hash()));
        }
    }
    let mut last: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (index, known) in all {
        for (node, entry, hash) in known {
            let before = last.insert(node, index);
            if before.is_some_and(|before| before + 1 != index) {
                // A snapshot has replaced the entries between.
                report(promises, node, NodeFact::Started);
            }
            report(promises, node, NodeFact::Applied { entry, hash, digest: 0 });
        }
    }
}

fn report(promises: &mut Promises, node: NodeId, what: NodeFact) {
    let place = match &what {
        NodeFact::Appended { entry, .. } | NodeFact::Applied { entry, .. } => {
            format!("entry {} in the folder of node {node}", entry.index.0)
        }
        _ => format!("in the folder of node {node}"),
    };
    promises.observe_log(&Fact::Node { node, at: Nanos(0), what }, || place.clone());
}
