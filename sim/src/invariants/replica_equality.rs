//! replica-equality: at one log index every replica has the same digest, whether the replica applied the log,
//! loaded its own snapshot or installed another replica's: a snapshot and the log after it equal the whole
//! log.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact, Index, Origin};

/// First digest reported at each index.
#[derive(Default)]
pub struct ReplicaEquality {
    digests: BTreeMap<Index, (NodeId, u64)>,
}

impl ReplicaEquality {
    fn reported(&mut self, node: NodeId, index: Index, digest: u64, origin: Origin) -> Result<(), String> {
        let (first, expected) = *self.digests.entry(index).or_insert((node, digest));
        if expected != digest {
            return Err(format!(
                "at {index:?} node {node} ({origin:?}) has digest {digest:016x}, node {first} had {expected:016x}"
            ));
        }
        Ok(())
    }
}

impl Invariant for ReplicaEquality {
    fn name(&self) -> &'static str {
        "replica-equality"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Replica { node, index, digest, origin } => self.reported(*node, *index, *digest, *origin),
            Fact::Node { node, what: NodeFact::Applied { entry, digest, .. }, .. } => {
                self.reported(*node, entry.index, *digest, Origin::Apply)
            }
            Fact::Node { node, what: NodeFact::Installed { entry: Some(entry), digest }, .. } => {
                self.reported(*node, entry.index, *digest, Origin::Install)
            }
            _ => Ok(()),
        }
    }
}
