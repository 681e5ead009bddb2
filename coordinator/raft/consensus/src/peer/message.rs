//! Messages between nodes. Variants are appended, never reordered: their position is on the wire.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::busy::{self, Work};
use rowlock_proto::{ErrorCode, Incarnation, NodeId, SessionId};
use rowlock_state::codec::{self, CodecError};
use rowlock_state::command::{Attachment, Proposal};
use rowlock_transport::Lane;
use rowlock_wal::entry::Member;
use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::raft_types::{RaftRequest, RaftResponse};
use crate::reconfiguration::Wanted;
use crate::status::Status;

/// Number of [`Request::Forward`] on the wire.
const FORWARD: u8 = 1;

/// Request to another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Raft(RaftRequest),
    /// Proposals for the leader, in order. The leader answers `Forwarded` when its proposer has the batch;
    /// the outcome comes with the log.
    Forward {
        /// The leader's term, as known to the sender: the leader of another term answers `NotLeader`. Earlier
        /// batches may have been dropped with their term; then later ones must be dropped, too.
        term: u64,
        batch: Vec<Proposal>,
    },
    /// Sessions with activity since the sender's last report. The leader, in contact with a quorum, restarts
    /// their timers and answers `TouchesNoted`.
    Touches {
        /// Each at most once.
        sessions: Vec<SessionId>,
        /// The leader's term, as known to the sender: the leader of another term answers `NotLeader`.
        term: u64,
        /// The sender's disk is short of room for growth.
        is_short: bool,
    },
    /// Asks for the log index that a linearizable read must wait for.
    ReadIndex,
    /// Asks for the status. Every node answers.
    Status,
    /// Adds a node as a learner; answered when the change is committed.
    AddLearner {
        node: NodeId,
        member: Member,
    },
    /// Changes the membership in ZooKeeper's terms. Answered with `Reconfigured`.
    Reconfigure(Wanted),
    /// Sessions whose clients disconnected and had requested a shorter expiry for this case. Sent behind the
    /// touches of these clients. The leader of that term answers `ClientDisconnectsNoted`.
    ClientDisconnects {
        /// At most one per session.
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    },
    /// Asks, after a start, for the other node's knowledge about the sender. Every node answers `Introduced`.
    Introduce,
    /// Performs an operator's request. Answered with `Operated`.
    Operate(Operation),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Raft(RaftResponse),
    /// The leader's proposer has the batch.
    Forwarded,
    /// The timers were restarted.
    TouchesNoted {
        /// Sessions without a running timer: unknown to the leader, or with a decided expiry. Their
        /// heartbeats must stay unanswered.
        refused: Vec<SessionId>,
        /// Sessions per second that may move from the sender to the leader; 0: the leader has no room.
        invites_per_second: u32,
    },
    /// A read that waits until this log index is applied sees every write that completed before the request.
    ReadIndex {
        index: u64,
    },
    Status(Status),
    MembershipChanged {
        index: u64,
    },
    /// The node did nothing, for the given reason.
    Refused(Refusal),
    /// The reconfiguration is committed at this log index, or was refused without effect.
    Reconfigured(Result<u64, ErrorCode>),
    /// The sessions of `ClientDisconnects` have their shorter time, except for those that moved to another
    /// connection.
    ClientDisconnectsNoted,
    Introduced(Introduction),
    /// Result of an operator's request as a document, or its error.
    Operated(Result<String, ErrorCode>),
}

/// Reason why a node did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("this node is not the leader")]
    NotLeader { leader: Option<NodeId> },
    #[error("the leader is not in contact with a quorum")]
    NoQuorum,
    /// The node's queues are full.
    #[error("the node is overloaded")]
    Overloaded,
    /// The node is starting or stopping.
    #[error("the node is not serving")]
    NotServing,
    /// The request is invalid, as a membership change that cannot work.
    #[error("{0}")]
    Invalid(String),
}

/// A client has closed its session's connection; the session may come back within a grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientDisconnect {
    pub session: SessionId,
    /// Attachment of the closed connection: a newer attachment makes the disconnect void.
    pub attachment: Attachment,
    /// Time for which the session lives on, in milliseconds.
    pub grace_ms: u32,
}

impl ClientDisconnect {
    pub fn grace(&self) -> Duration {
        Duration::from_millis(u64::from(self.grace_ms))
    }
}

impl Request {
    /// Encodes the request. Forwarded proposals, as frequent as clients' writes, use the encoding of log
    /// entries ([`Proposal::encode_all`]), which omits repeated values.
    pub fn encode(&self) -> Vec<u8> {
        let Request::Forward { term, batch } = self else {
            let out = codec::encode(self);
            busy::spend(Work::LogByte, out.len() as u64);
            assert!(out.first() != Some(&FORWARD), "only forwarded proposals begin with that byte");
            return out;
        };
        let mut out = vec![FORWARD];
        out.extend_from_slice(&term.to_le_bytes());
        let head = out.len();
        Proposal::encode_all(batch, &mut out);
        assert!(out.len() > head, "a batch has a length at least");
        busy::spend(Work::LogByte, out.len() as u64);
        out
    }

    /// Decodes a request from all of `bytes`; `max` bounds their number.
    pub fn decode(bytes: &Bytes, max: usize) -> Result<Request, CodecError> {
        busy::spend(Work::LogByte, bytes.len() as u64);
        if bytes.first() != Some(&FORWARD) || bytes.len() > max {
            return codec::decode(bytes, max);
        }
        let Some((term, _)) = bytes[1..].split_first_chunk::<8>() else {
            return Err(CodecError::Malformed("forwarded proposals without a term".to_owned()));
        };
        let batch = Proposal::decode_all(&bytes.slice(1 + term.len()..));
        let batch = batch.map_err(|error| CodecError::Malformed(error.to_string()))?;
        Ok(Request::Forward { term: u64::from_le_bytes(*term), batch })
    }

    /// Returns whether the request is allowed on that lane. The listener closes the connection on any other
    /// request: the sender has a bug.
    pub fn belongs_to(&self, lane: Lane) -> bool {
        match self {
            Request::Raft(RaftRequest::Append(_)) => {
                matches!(lane, Lane::Raft | Lane::Heartbeat)
            }
            Request::Raft(RaftRequest::Snapshot(_)) => lane == Lane::Snapshot,
            Request::Raft(RaftRequest::PreVote(_)) => lane == Lane::Heartbeat,
            Request::Raft(_) => lane == Lane::Control,
            Request::Forward { .. } => lane == Lane::Proposals,
            Request::Touches { .. }
            | Request::ReadIndex
            | Request::Status
            | Request::AddLearner { .. }
            | Request::Reconfigure(_)
            | Request::ClientDisconnects { .. }
            | Request::Introduce
            | Request::Operate(_) => lane == Lane::Control,
        }
    }
}

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
    /// Term in which this node leads, and the last index of its log at the request. A node that has forgotten
    /// entries remembers again once it has that entry.
    pub leads_with: Option<(u64, u64)>,
}

impl Introduction {
    /// Returns whether the log is empty except for the membership with which a cluster is formed.
    pub fn is_fresh(&self) -> bool {
        self.last_index.unwrap_or(0) == 0
    }
}
