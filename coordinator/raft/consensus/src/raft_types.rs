//! Parameter types of openraft, and Raft's messages. All other code of the crate uses these names.
//!
//! Below `raft/`, which decides, and `peer/`, which transports: so neither depends on the other.
//!
//! Raft's messages between nodes. Variants are appended, never reordered: their position is on the wire.

use std::fmt;

use bytes::Bytes;
use rowlock_proto::NodeId;
use rowlock_wal::entry::Member;
use serde::{Deserialize, Serialize};

use crate::node_hook::Position;
use crate::runtime::EnvRuntime;

/// Payload of a normal log entry: an encoded `rowlock_state::command::Batch`.
///
/// The payload stays encoded from the proposer to apply: followers copy bytes and decode once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Outcome of a committed entry. The origin nodes answer their clients from their own apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryOutcome {
    Applied,
    /// The entry did not follow the last entry of its term, and no node applied any part.
    Skipped,
}

impl fmt::Display for EntryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntryOutcome::Applied => "applied",
            EntryOutcome::Skipped => "skipped",
        })
    }
}

openraft::declare_raft_types!(
    pub TypeConfig:
        D = Payload,
        R = EntryOutcome,
        NodeId = u64,
        Node = Member,
        AsyncRuntime = EnvRuntime,
);

pub type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
/// The membership with its position in the log.
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// Membership change, batch, or blank.
pub type EntryPayload = openraft::type_config::alias::PayloadOf<TypeConfig>;
/// Term, with its leader or candidate.
pub type LeaderId = openraft::type_config::alias::LeaderIdOf<TypeConfig>;
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// Converts to the hook's type.
pub fn position(id: LogId) -> Position {
    Position { term: id.leader_id.term, leader: NodeId(id.leader_id.node_id), index: id.index }
}

pub type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub type AppendResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
/// openraft's vote and pre-vote request.
pub type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
/// Request of a leaving leader to the next one.
pub type TransferRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;
pub type TransferResponse = openraft::raft::TransferLeaderResponse<TypeConfig>;
pub type SnapshotResponse = openraft::raft::SnapshotResponse<TypeConfig>;
pub type Snapshot<D> = openraft::type_config::alias::SnapshotOf<TypeConfig, D>;

/// Request from one node's Raft to another's.
#[derive(Clone, Serialize, Deserialize)]
pub enum RaftRequest {
    Append(AppendRequest),
    Vote(VoteRequest),
    PreVote(VoteRequest),
    TransferLeader(TransferRequest),
    Snapshot(SnapshotStep),
    /// Vote request of a candidate that restarts the cluster: also nodes that have forgotten entries vote.
    RestartVote(VoteRequest),
}

/// Steps of a snapshot's transfer, each answered before the next is sent, all on one connection.
#[derive(Clone, Serialize, Deserialize)]
pub enum SnapshotStep {
    /// Description of the snapshot. Drops the remains of an earlier transfer on this connection.
    Begin {
        vote: Vote,
        meta: SnapshotMeta,
        /// Bytes of the whole file.
        len: u64,
    },
    /// The next bytes of the file.
    Chunk {
        /// Offset in the file; must equal the end of the last chunk.
        offset: u64,
        data: Bytes,
    },
    /// End of the file: check, make durable, install.
    Install,
}

impl fmt::Debug for RaftRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RaftRequest::Append(request) => {
                write!(f, "Append({request})")
            }
            RaftRequest::Vote(request) => write!(f, "Vote({request})"),
            RaftRequest::PreVote(request) => write!(f, "PreVote({request})"),
            RaftRequest::RestartVote(request) => write!(f, "RestartVote({request})"),
            RaftRequest::TransferLeader(request) => write!(f, "TransferLeader({request})"),
            RaftRequest::Snapshot(SnapshotStep::Begin { vote, meta, len }) => {
                write!(f, "Snapshot(Begin {meta} of {len} bytes by {vote})")
            }
            RaftRequest::Snapshot(SnapshotStep::Chunk { offset, data }) => {
                write!(f, "Snapshot(Chunk of {} bytes at {offset})", data.len())
            }
            RaftRequest::Snapshot(SnapshotStep::Install) => f.write_str("Snapshot(Install)"),
        }
    }
}

impl RaftRequest {
    /// Returns the greatest term in the request.
    pub fn term(&self) -> u64 {
        let of_log = |id: &Option<LogId>| id.map_or(0, |id| id.leader_id.term);
        match self {
            RaftRequest::Append(request) => {
                let entries = request.entries.iter().map(|entry| entry.log_id.leader_id.term).max();
                let logs = of_log(&request.prev_log_id).max(of_log(&request.leader_commit));
                request.vote.leader_id.term.max(entries.unwrap_or(0)).max(logs)
            }
            RaftRequest::Vote(request)
            | RaftRequest::PreVote(request)
            | RaftRequest::RestartVote(request) => {
                request.vote.leader_id.term.max(of_log(&request.last_log_id))
            }
            RaftRequest::TransferLeader(request) => {
                request.from_leader().leader_id.term.max(of_log(&request.last_log_id().copied()))
            }
            RaftRequest::Snapshot(SnapshotStep::Begin { vote, meta, .. }) => {
                vote.leader_id.term.max(of_log(&meta.last_log_id))
            }
            RaftRequest::Snapshot(SnapshotStep::Chunk { .. } | SnapshotStep::Install) => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RaftResponse {
    Append(AppendResponse),
    /// Answer to `Vote` and `PreVote`.
    Vote(VoteResponse),
    TransferLeader(TransferResponse),
    /// Answer to `Snapshot`: continue with the next step.
    SnapshotProceed,
    SnapshotInstalled(SnapshotResponse),
    /// The node failed: its Raft has stopped, or the snapshot could not be written.
    Failed(String),
    /// Answer to `Append` by a node without clients: commits may be notified later, see `CommitNotify`.
    AppendQuiet(AppendResponse),
    /// Answer to `PreVote` by a node that has forgotten entries: the node would vote only for a restart.
    ForgetfulVote(VoteResponse),
    /// Answer to `Append` by a node that has forgotten entries, and lacks some that the node acknowledged.
    ForgetfulAppend(AppendResponse),
}

/// Presence of clients on a follower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientPresence {
    /// Clients are connected, or may be.
    #[default]
    Present,
    Absent,
}

impl RaftResponse {
    /// Returns the greatest term in the response.
    pub fn term(&self) -> u64 {
        match self {
            RaftResponse::Append(AppendResponse::HigherVote(vote))
            | RaftResponse::AppendQuiet(AppendResponse::HigherVote(vote))
            | RaftResponse::ForgetfulAppend(AppendResponse::HigherVote(vote)) => vote.leader_id.term,
            RaftResponse::Vote(response) | RaftResponse::ForgetfulVote(response) => {
                response.vote.leader_id.term.max(response.last_log_id.map_or(0, |id| id.leader_id.term))
            }
            RaftResponse::SnapshotInstalled(response) => response.vote.leader_id.term,
            RaftResponse::Append(_)
            | RaftResponse::AppendQuiet(_)
            | RaftResponse::ForgetfulAppend(_)
            | RaftResponse::TransferLeader(_)
            | RaftResponse::SnapshotProceed
            | RaftResponse::Failed(_) => 0,
        }
    }

    /// Returns the answer to an append request, and whether the answering node has clients.
    ///
    /// # Errors
    /// The response answers another request.
    pub fn into_append(self) -> Result<(AppendResponse, ClientPresence), RaftResponse> {
        match self {
            RaftResponse::Append(response) | RaftResponse::ForgetfulAppend(response) => {
                Ok((response, ClientPresence::Present))
            }
            RaftResponse::AppendQuiet(response) => Ok((response, ClientPresence::Absent)),
            other => Err(other),
        }
    }
}
