//! What a node says to one that has been started: how it stands itself, and what it knows of the other.

use rowlock_proto::NodeId;
use rowlock_types::incarnation::Incarnation;
use serde::{Deserialize, Serialize};

/// The answer to `Request::Introduce`. That it comes says as well that the asking node was not known by
/// another data folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Voters of the newest membership in the log.
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
    /// Where in the log that membership is.
    pub members_at: Option<u64>,
    /// End of the log.
    pub last_index: Option<u64>,
    /// This node takes part in votes and acknowledgements.
    pub is_admitted: bool,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// If it leads in `term`: up to where the asking node has acknowledged its log.
    pub acknowledged: Option<u64>,
    /// By which incarnations it knows other nodes.
    pub known: Vec<(NodeId, Incarnation)>,
    /// Where the members of that membership listen for nodes (`HOST:PORT`). The asking node may have an older
    /// `cluster.toml` and no log.
    pub addresses: Vec<(NodeId, String)>,
}

impl Introduction {
    /// Its log holds nothing that a leader has sent or written: at most the membership with which a cluster
    /// is formed.
    pub fn is_fresh(&self) -> bool {
        self.last_index.unwrap_or(0) == 0
    }
}
