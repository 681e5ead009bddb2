//! replica-equality: at one log index every replica has the same digest, whether it applied the log, came back from
//! its own snapshot or was given another replica's.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::Invariant;
use crate::history::{Fact, Index};

/// The first digest told at each index.
#[derive(Default)]
pub struct ReplicaEquality {
    digests: BTreeMap<Index, (NodeId, u64)>,
}

impl Invariant for ReplicaEquality {
    fn name(&self) -> &'static str {
        "replica-equality"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        let Fact::Replica { node, index, digest, origin } = fact else { return Ok(()) };
        let (first, expected) = self.digests.entry(*index).or_insert((*node, *digest));
        if expected != digest {
            return Err(format!(
                "at {index:?} node {node} ({origin:?}) has digest {digest:016x}, node {first} had {expected:016x}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::*;
    use crate::history::Origin;

    fn replica(node: u64, index: u64, digest: u64, origin: Origin) -> Fact {
        Fact::Replica { node: NodeId(node), index: Index(index), digest, origin }
    }

    #[test]
    fn two_digests_at_one_index_are_caught() {
        let facts = [replica(1, 7, 0xaa, Origin::Apply), replica(2, 7, 0xab, Origin::Install)];
        assert!(judge(ReplicaEquality::default(), &facts).unwrap_err().contains("Install"));
    }

    #[test]
    fn different_indexes_may_differ() {
        let facts = [replica(1, 7, 0xaa, Origin::Apply), replica(2, 8, 0xab, Origin::Apply)];
        assert_eq!(judge(ReplicaEquality::default(), &facts), Ok(()));
    }
}
