//! What this node currently is, for everybody who asks: listener, words, HTTP, expiry.

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

/// Role in the Raft group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Replicates and votes.
    #[default]
    Follower,
    /// Asks for votes.
    Candidate,
    /// Orders the log.
    Leader,
    /// Replicates without a vote.
    Learner,
}

/// A snapshot of this node's state, published by the node's status task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// Its role.
    pub role: Role,
    /// Raft term.
    pub term: u64,
    /// The leader, if known.
    pub leader: Option<NodeId>,
    /// In contact with a quorum, caught up after start: clients may be served.
    pub serving: bool,
    /// Last log index applied here.
    pub applied_index: u64,
    /// Last log index known committed here.
    pub committed_index: u64,
    /// Last log index stored here.
    pub last_log_index: u64,
    /// Log index of the last snapshot, 0 for none.
    pub snapshot_index: u64,
    /// Log index up to which the log was purged, 0 for none.
    pub purged_index: u64,
    /// Voters of the current membership.
    pub voters: Vec<NodeId>,
    /// Learners of the current membership.
    pub learners: Vec<NodeId>,
    /// On the leader: up to which log index each other member has stored the log.
    pub replicated: Vec<(NodeId, u64)>,
    /// This node takes no part before these nodes have said that it has forgotten nothing.
    pub waits_for: Vec<NodeId>,
}
