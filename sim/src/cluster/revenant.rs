//! A node of the old cluster that returns with its old disk after its peers have become a new cluster or were
//! lost. Invariant: this node never leads, and no leader accepts its acknowledgments.

use parking_lot::Mutex;
use rowlock_coordinator::{NodeHook, Position};
use rowlock_proto::NodeId;

use super::record::Record;

/// Observer of the returned node. Reports no facts, because the checkers know the new cluster only.
pub struct ReturnedNode {
    node: NodeId,
    record: Record,
    is_told: Mutex<bool>,
}

impl ReturnedNode {
    pub fn new(node: NodeId, record: Record) -> Self {
        ReturnedNode { node, record, is_told: Mutex::new(false) }
    }

    fn is_accepted(&self, how: &str) {
        if !std::mem::replace(&mut *self.is_told.lock(), true) {
            let what = format!("node {} of the old cluster {how}: the new one has accepted it", self.node);
            self.record.break_promise("restored-cluster", what);
        }
    }
}

impl NodeHook for ReturnedNode {
    fn leads(&self, term: u64) {
        self.is_accepted(&format!("leads term {term}"));
    }

    fn acknowledges(&self, upto: Position) {
        self.is_accepted(&format!("acknowledges entries up to {}", upto.index));
    }
}
