//! A node of the old cluster that comes back with its old disk when the others have become a new cluster, or
//! were lost. It is one of few: it may not lead, and no leader may be heard by it.

use parking_lot::Mutex;
use rowlock_coordinator::{NodeHook, Position};
use rowlock_proto::NodeId;

use super::record::Record;

/// Its observer. Tells the checkers nothing of it, because they know the new cluster only.
pub struct Revenant {
    node: NodeId,
    record: Record,
    is_told: Mutex<bool>,
}

impl Revenant {
    pub fn new(node: NodeId, record: Record) -> Self {
        Revenant { node, record, is_told: Mutex::new(false) }
    }

    fn is_accepted(&self, how: &str) {
        if !std::mem::replace(&mut *self.is_told.lock(), true) {
            let what = format!("node {} of the old cluster {how}: the new one has accepted it", self.node);
            self.record.break_promise("restored-cluster", what);
        }
    }
}

impl NodeHook for Revenant {
    fn leads(&self, term: u64) {
        self.is_accepted(&format!("leads term {term}"));
    }

    fn acknowledges(&self, upto: Position) {
        self.is_accepted(&format!("acknowledges entries up to {}", upto.index));
    }
}
