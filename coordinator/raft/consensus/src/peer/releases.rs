//! Versions of the cluster's nodes, as last reported by each node.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_proto::NodeId;
use rowlock_state::version::Versions;
use rowlock_wal::limits::KNOWN_NODES_MAX;

/// This node's own versions, and those of other nodes connected since the start. Clones share their state.
///
/// A restarted node dials and accepts connections first, so the other nodes know its release before its other
/// requests.
#[derive(Clone, Debug)]
pub struct Releases {
    ours: Arc<Versions>,
    /// Bounded: only nodes in the data folder's record (`limits::KNOWN_NODES_MAX`).
    heard: Arc<Mutex<BTreeMap<NodeId, Versions>>>,
}

impl Default for Releases {
    fn default() -> Self {
        Releases::of(Versions::of_this_release())
    }
}

impl Releases {
    /// Creates the record of a node with the versions `ours`, without other nodes.
    pub fn of(ours: Versions) -> Releases {
        Releases { ours: Arc::new(ours), heard: Arc::default() }
    }

    pub fn ours(&self) -> &Versions {
        &self.ours
    }

    /// Returns the latest versions of another node. `None`: no connection since the start.
    pub fn heard_of(&self, node: NodeId) -> Option<Versions> {
        self.heard.lock().get(&node).cloned()
    }

    pub(super) fn record(&self, node: NodeId, versions: Versions) {
        let mut heard = self.heard.lock();
        heard.insert(node, versions);
        assert!(heard.len() <= KNOWN_NODES_MAX, "only nodes that are recorded are heard of");
    }
}
