//! What this node currently is, for everybody who asks: listener, words, HTTP, expiry.

use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

/// Role in the Raft group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
    /// Replicates without a vote.
    Learner,
}

impl Role {
    /// As in metrics, documents and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
            Role::Learner => "learner",
        }
    }
}

/// Why a node serves no clients. The first one that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotServing {
    /// The role is not known yet.
    #[default]
    Starts,
    Stops,
    /// An operator has sent its clients away.
    Drained,
    /// A write of the log does not end, and the others commit without this node.
    DiskHangs,
    /// The log waits for room on the disk, and the others commit without this node.
    NoRoom,
    /// A majority of the voters does not answer.
    NoQuorum,
    /// A majority of the voters answers, and none of them leads yet.
    Electing,
    /// It has not applied all that was committed when it regained contact.
    CatchesUp,
}

impl NotServing {
    /// The role as operators read it.
    pub fn text(self) -> &'static str {
        match self {
            NotServing::Starts => "the node is starting",
            NotServing::Stops => "the node is stopping",
            NotServing::Drained => {
                "an operator has drained this node; rowlock drain --undo ends it, and so does a restart"
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

/// A snapshot of this node's state, published by the node's status task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub node: NodeId,
    pub role: Role,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// Since when no leader with a quorum is known, ms since 1970 by this node's clock; `None` while one is.
    pub leaderless_since_ms: Option<i64>,
    /// In contact with a quorum, caught up after start: clients may be served.
    pub serving: bool,
    /// Why not, as far as this node itself is asked: it is not sent to other nodes. `None`: it serves.
    #[serde(skip)]
    pub not_serving: Option<NotServing>,
    /// Last log index applied here.
    pub applied_index: u64,
    /// Last log index known committed here.
    pub committed_index: u64,
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
    /// Only in the leader's answers to other nodes: for how many ms each other member has not answered it.
    pub silent: Vec<(NodeId, u64)>,
    /// This node takes no part before these nodes have said that it has forgotten nothing.
    pub waits_for: Vec<NodeId>,
}
