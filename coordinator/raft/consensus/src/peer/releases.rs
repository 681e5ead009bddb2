//! Versions of the cluster's nodes, as last reported by each node.
//!
//! The transport's record of incarnations, stored in the data folder, and of the versions that other nodes
//! reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::version::{self, Versions};
use rowlock_transport::{KnownIncarnations, NotRecorded};
use rowlock_wal::limits::KNOWN_NODES_MAX;
use rowlock_wal::{Folder, NotRecorded as NotOnDisk};

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

/// Data folder, and the versions of the nodes.
pub(super) struct FolderIncarnations(pub(super) Folder, pub(super) Releases);

impl KnownIncarnations for FolderIncarnations {
    fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    fn cluster(&self) -> Option<ClusterId> {
        self.0.cluster()
    }

    fn versions(&self) -> Versions {
        let left_behind = self.0.version().map_or(version::FIRST, |version| version.number);
        self.1.ours().clone().since(left_behind)
    }

    fn heard(&self, node: NodeId, versions: Versions) {
        self.1.record(node, versions);
    }

    fn record(&self, node: NodeId, incarnation: Incarnation) -> BoxFuture<'_, Result<(), NotRecorded>> {
        let recording = self.0.record(node, incarnation);
        let told = |cause| match cause {
            NotOnDisk::OtherFolder => NotRecorded::OtherFolder,
            NotOnDisk::TooMany => NotRecorded::TooMany,
            NotOnDisk::Disk(error) => NotRecorded::Disk(error.to_string()),
        };
        recording.map(move |recorded| recorded.map_err(told)).boxed()
    }
}
