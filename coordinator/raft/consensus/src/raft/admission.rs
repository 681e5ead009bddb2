//! Whether this node may take part: vote, acknowledge, stand for election.
//!
//! Closed at every start, until `bootstrap/` knows from the others that this node has forgotten nothing. What
//! asks this node for a vote or an acknowledgement until then gets none (`rpc.rs`).

use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_proto::NodeId;

/// The door. Clones are the same one.
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
    /// One that stands open.
    pub fn open() -> Self {
        let admission = Admission::default();
        admission.grant();
        admission
    }

    /// Opens it, for as long as the node runs.
    pub fn grant(&self) {
        self.waits_for.lock().clear();
        self.is_open.send(true);
    }

    /// Whether it is open.
    pub fn is_granted(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Waits until it is open. Cancel safe.
    pub async fn granted(&self) {
        let opened = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        assert!(opened.is_ok(), "this door has the sender");
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
