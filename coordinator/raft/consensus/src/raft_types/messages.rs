//! Raft's messages between nodes. Variants are appended, never reordered: their position is on the wire.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{LogId, SnapshotMeta, TypeConfig, Vote};

pub type AppendRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub type AppendResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
/// openraft's vote and pre-vote request.
pub type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
/// "Become the leader", from the leader that wants to go.
pub type TransferRequest = openraft::raft::TransferLeaderRequest<TypeConfig>;
pub type TransferResponse = openraft::raft::TransferLeaderResponse<TypeConfig>;
/// The answer to a whole snapshot.
pub type SnapshotResponse = openraft::raft::SnapshotResponse<TypeConfig>;
pub type Snapshot<D> = openraft::type_config::alias::SnapshotOf<TypeConfig, D>;

/// What one node's Raft asks of another's.
#[derive(Clone, Serialize, Deserialize)]
pub enum RaftRequest {
    /// Entries, or a heartbeat.
    Append(AppendRequest),
    Vote(VoteRequest),
    PreVote(VoteRequest),
    TransferLeader(TransferRequest),
    /// A step of a snapshot's transfer.
    Snapshot(SnapshotStep),
}

/// The steps of a snapshot's transfer, each answered before the next is sent, all on one connection.
#[derive(Clone, Serialize, Deserialize)]
pub enum SnapshotStep {
    /// Its description. Drops what an earlier transfer on this connection has left.
    Begin {
        vote: Vote,
        meta: SnapshotMeta,
        /// Bytes of the whole file.
        len: u64,
    },
    /// The next bytes of the file.
    Chunk {
        /// Where they belong; must be where the last chunk ended.
        offset: u64,
        data: Bytes,
    },
    /// All bytes have been sent: check, make durable, install.
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
    /// The greatest term that it speaks of.
    pub fn term(&self) -> u64 {
        let of_log = |id: &Option<LogId>| id.map_or(0, |id| id.leader_id.term);
        match self {
            RaftRequest::Append(request) => {
                let entries = request.entries.iter().map(|entry| entry.log_id.leader_id.term).max();
                let logs = of_log(&request.prev_log_id).max(of_log(&request.leader_commit));
                request.vote.leader_id.term.max(entries.unwrap_or(0)).max(logs)
            }
            RaftRequest::Vote(request) | RaftRequest::PreVote(request) => {
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
    /// To `Vote` and `PreVote`.
    Vote(VoteResponse),
    TransferLeader(TransferResponse),
    /// To `Snapshot`: go on with the next step.
    SnapshotProceed,
    SnapshotInstalled(SnapshotResponse),
    /// The node could not: its Raft has stopped, or the snapshot could not be written.
    Failed(String),
    /// To `Append`, by a node without clients: it need not learn of commits at once, see `commit_notify`.
    AppendQuiet(AppendResponse),
}

/// Whether clients are connected to a follower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientPresence {
    /// Clients are connected, or may be.
    #[default]
    Present,
    /// No client is connected.
    Absent,
}

impl RaftResponse {
    /// The greatest term that it speaks of.
    pub fn term(&self) -> u64 {
        match self {
            RaftResponse::Append(AppendResponse::HigherVote(vote))
            | RaftResponse::AppendQuiet(AppendResponse::HigherVote(vote)) => vote.leader_id.term,
            RaftResponse::Vote(response) => {
                response.vote.leader_id.term.max(response.last_log_id.map_or(0, |id| id.leader_id.term))
            }
            RaftResponse::SnapshotInstalled(response) => response.vote.leader_id.term,
            RaftResponse::Append(_)
            | RaftResponse::AppendQuiet(_)
            | RaftResponse::TransferLeader(_)
            | RaftResponse::SnapshotProceed
            | RaftResponse::Failed(_) => 0,
        }
    }

    /// The answer to an append request, and whether the node that gives it has clients.
    ///
    /// # Errors
    /// It is the answer to something else.
    pub fn into_append(self) -> Result<(AppendResponse, ClientPresence), RaftResponse> {
        match self {
            RaftResponse::Append(response) => Ok((response, ClientPresence::Present)),
            RaftResponse::AppendQuiet(response) => Ok((response, ClientPresence::Absent)),
            other => Err(other),
        }
    }
}
