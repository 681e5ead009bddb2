//! Current status of this node, for all readers: listener, four-letter words, HTTP, expiry.

use rowlock_metrics::Role;
use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

/// Reason why a node serves no clients: the first that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotServing {
    /// The node does not know its role yet.
    #[default]
    Starts,
    Stops,
    /// An operator has drained the node.
    Drained,
    /// A write of the log hangs, and the other nodes commit without this node.
    DiskHangs,
    /// The log waits for room on the disk, and the other nodes commit without this node.
    NoRoom,
    /// A majority of the voters does not answer.
    NoQuorum,
    /// A majority of the voters answers, but has no leader yet.
    Electing,
    /// The node has not applied all entries committed before the node regained contact.
    CatchesUp,
}

impl NotServing {
    /// Returns the reason as text for operators.
    pub fn text(self) -> &'static str {
        match self {
            NotServing::Starts => "the node is starting",
            NotServing::Stops => "the node is stopping",
            NotServing::Drained => {
                "an operator has drained this node; rowlock drain --undo or a restart ends the drain"
            }
            NotServing::DiskHangs => "the disk does not answer, and the cluster goes on without this node",
            NotServing::NoRoom => {
                "the log waits for room on the disk, and the cluster goes on without this node"
            }
            NotServing::NoQuorum => "no contact to a quorum: a majority of the voters does not answer",
            NotServing::Electing => {
                "a majority of the voters answers and is electing a leader; slow disks make that slow: \
                 rowlock check perf"
            }
            NotServing::CatchesUp => "the node is catching up with the leader",
        }
    }
}

/// A copy of this node's status, published by the node's status task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub node: NodeId,
    pub role: Role,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// Time since which the node knows no leader with a quorum, in milliseconds since 1970 by this node's
    /// clock; `None` while there is a leader.
    pub leaderless_since_ms: Option<i64>,
    /// True if the node serves clients: in contact with a quorum, and caught up after the start.
    pub serving: bool,
    /// Reason for not serving, on the node itself only: nodes do not send the reason. `None`: the node
    /// serves.
    #[serde(skip)]
    pub not_serving: Option<NotServing>,
    /// Last log index applied by this node.
    pub applied_index: u64,
    /// Last log index known to this node as committed.
    pub committed_index: u64,
    pub last_log_index: u64,
    /// Log index of the last snapshot; 0 without one.
    pub snapshot_index: u64,
    /// Log index up to which the log was purged; 0 without a purge.
    pub purged_index: u64,
    /// Voters of the current membership.
    pub voters: Vec<NodeId>,
    /// Learners of the current membership.
    pub learners: Vec<NodeId>,
    /// Log index up to which each other member has stored the log; on the leader.
    pub replicated: Vec<(NodeId, u64)>,
    /// Milliseconds for which each other member has not answered the leader; only in the leader's responses
    /// to other nodes.
    pub silent: Vec<(NodeId, u64)>,
    /// Nodes that must confirm that this node's data is complete; until then the node takes no part.
    pub waits_for: Vec<NodeId>,
}
