//! replica-equality: at one log index every replica has the same digest, whether the replica applied the log,
//! loaded its own snapshot or installed another replica's: a snapshot and the log after it equal the whole
//! log.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Fact, Index, Origin};

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::check_history;
    use super::super::cluster::testing::{applied, installed};
    use super::*;

    fn replica(node: u64, index: u64, digest: u64, origin: Origin) -> Fact {
        Fact::Replica { node: NodeId(node), index: Index(index), digest, origin }
    }

    #[test]
    fn two_digests_at_one_index_are_caught() {
        let facts = [replica(1, 7, 0xaa, Origin::Apply), replica(2, 7, 0xab, Origin::Install)];
        assert!(check_history(ReplicaEquality::default(), &facts).unwrap_err().contains("Install"));
    }

    #[test]
    fn a_snapshot_that_is_not_what_the_log_gives_is_caught() {
        let facts = [replica(0, 7, 0xaa, Origin::Apply), installed(2, (1, 1, 7), 0xab)];
        assert!(check_history(ReplicaEquality::default(), &facts).is_err());
        let facts = [replica(0, 7, 0, Origin::Apply), applied(1, (1, 1, 7), 1), installed(2, (1, 1, 7), 0)];
        assert_eq!(check_history(ReplicaEquality::default(), &facts), Ok(()));
    }

    #[test]
    fn different_indexes_may_differ() {
        let facts = [replica(1, 7, 0xaa, Origin::Apply), replica(2, 8, 0xab, Origin::Apply)];
        assert_eq!(check_history(ReplicaEquality::default(), &facts), Ok(()));
    }
}
