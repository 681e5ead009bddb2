//! Introduction of a running node to a started one: own state, and knowledge about the started node.

use rowlock_proto::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// Answer to `Request::Introduce`. The answer also implies that the asking node was not recorded with another
/// data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Voters of the newest membership in the log.
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
    /// Log index of that membership.
    pub members_at: Option<u64>,
    pub last_index: Option<u64>,
    /// This node takes part in votes and acknowledgements.
    pub is_admitted: bool,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// Index up to which the asking node acknowledged this node's log, if this node leads in `term`.
    pub acknowledged: Option<u64>,
    /// Recorded incarnations of other nodes.
    pub known: Vec<(NodeId, Incarnation)>,
    /// Peer addresses (`HOST:PORT`) of the members of that membership. The asking node may have an older
    /// `cluster.toml` and no log.
    pub addresses: Vec<(NodeId, String)>,
}

impl Introduction {
    /// Returns whether the log is empty except for the membership with which a cluster is formed.
    pub fn is_fresh(&self) -> bool {
        self.last_index.unwrap_or(0) == 0
    }
}
