//! Whether this node may take part: vote, acknowledge, stand for election.
//!
//! Closed at every start, until `bootstrap/` knows from the others that this node has forgotten nothing. What
//! asks this node for a vote or an acknowledgement until then gets none (`rpc.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rowlock_proto::NodeId;

/// The door. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    is_open: Arc<AtomicBool>,
    waits_for: Arc<Mutex<Vec<NodeId>>>,
}

impl Admission {
    /// One that stands open.
    pub fn granted() -> Self {
        let admission = Admission::default();
        admission.grant();
        admission
    }

    /// Opens it, for as long as the node runs.
    pub fn grant(&self) {
        self.waits_for.lock().clear();
        self.is_open.store(true, Ordering::Release);
    }

    /// Whether it is open.
    pub fn is_granted(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Says for whose word the node waits.
    pub fn wait_for(&self, nodes: Vec<NodeId>) {
        *self.waits_for.lock() = nodes;
    }

    /// For whose word the node waits; empty when it is admitted.
    pub fn waits_for(&self) -> Vec<NodeId> {
        self.waits_for.lock().clone()
    }
}
