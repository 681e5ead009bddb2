//! Permission of this node to vote, acknowledge and stand for election.
//!
//! Closed at every start, until `bootstrap/` has learned from the other nodes that this node's data is
//! complete. Until then this node answers no vote request and no append request (`rpc.rs`).

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_proto::NodeId;

/// Gate before Raft's requests. Clones share their state.
#[derive(Clone)]
pub struct Admission {
    is_open: watch::Sender<bool>,
    waits_for: Arc<Mutex<Vec<NodeId>>>,
}

impl Default for Admission {
    fn default() -> Self {
        Admission { is_open: watch::channel(false).0, waits_for: Arc::default() }
    }
}

impl Admission {
    /// Creates an open gate.
    pub fn open() -> Self {
        let admission = Admission::default();
        admission.grant();
        admission
    }

    /// Opens the gate, for as long as the node runs.
    pub fn grant(&self) {
        self.waits_for.lock().clear();
        self.is_open.send(true);
    }

    pub fn is_granted(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Waits until the gate is open. Cancel safe.
    pub async fn granted(&self) {
        let opened = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        assert!(opened.is_ok(), "this door has the sender");
    }

    /// Records the nodes whose introduction this node still needs.
    pub fn wait_for(&self, nodes: Vec<NodeId>) {
        *self.waits_for.lock() = nodes;
    }

    /// Returns the nodes whose introduction this node still needs; empty after the admission.
    pub fn waits_for(&self) -> Vec<NodeId> {
        self.waits_for.lock().clone()
    }
}
