//! Which versions the nodes of the cluster know, as each said when it was last met.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_proto::NodeId;
use rowlock_types::limits::KNOWN_NODES_MAX;
use rowlock_types::versions::Versions;

/// This node's own versions, and those of the nodes that it has met since its start. Clones are the same.
///
/// A restarted node dials and is dialed again, so its release is known before it does anything else.
#[derive(Clone, Debug)]
pub struct Releases {
    ours: Arc<Versions>,
    /// Bounded: only of nodes that are recorded (`limits::KNOWN_NODES_MAX`).
    heard: Arc<Mutex<BTreeMap<NodeId, Versions>>>,
}

impl Default for Releases {
    fn default() -> Self {
        Releases::of(Versions::of_this_release())
    }
}

impl Releases {
    /// Of a node that knows these, and has met no other.
    pub fn of(ours: Versions) -> Releases {
        Releases { ours: Arc::new(ours), heard: Arc::default() }
    }

    pub fn ours(&self) -> &Versions {
        &self.ours
    }

    /// Returns the latest versions of another node. `None`: it has not been met.
    pub fn heard_of(&self, node: NodeId) -> Option<Versions> {
        self.heard.lock().get(&node).cloned()
    }

    pub(super) fn hear(&self, node: NodeId, versions: Versions) {
        let mut heard = self.heard.lock();
        heard.insert(node, versions);
        assert!(heard.len() <= KNOWN_NODES_MAX, "only nodes that are recorded are heard of");
    }
}
