//! What nodes say to each other. Variants are appended, never reordered: their position is on the wire.

use std::collections::BTreeSet;

use bytes::Bytes;
use rowlock_env::busy::{self, Work};
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::Proposal;
use rowlock_types::client_disconnect::ClientDisconnect;
use rowlock_types::codec::{self, CodecError};
use rowlock_types::member::Member;
use rowlock_types::operation::Operation;
use rowlock_types::reconfiguration::Wanted;
use rowlock_types::status::Status;
use serde::{Deserialize, Serialize};

use super::introduction::Introduction;
use crate::raft_types::messages::{RaftRequest, RaftResponse};
use rowlock_transport::Lane;

/// The number of [`Request::Forward`] on the wire.
const FORWARD: u8 = 1;

/// A question to another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Raft(RaftRequest),
    /// Proposals for the leader, in order. Answered with `Forwarded` when the leader's proposer has them;
    /// their outcome comes with the log.
    Forward {
        /// The leader's term, as the asking node knows it: another term's leader answers `NotLeader`. What
        /// this node sent before may have been dropped with its term, and what follows it must be, too.
        term: u64,
        /// In order of submission.
        batch: Vec<Proposal>,
    },
    /// Sessions that the asking node has heard of since it last said so. Answered with `TouchesNoted` once
    /// the leader, in contact with a quorum, has restarted their timers.
    Touches {
        /// Each at most once.
        sessions: Vec<SessionId>,
        /// The leader's term, as the asking node knows it: another term's leader answers `NotLeader`.
        term: u64,
        /// The asking node has too little room on its disk for what grows.
        is_short: bool,
    },
    /// Up to which log index must a linearizable read wait?
    ReadIndex,
    /// How are you? Answered by any node.
    Status,
    /// Take a node in as a learner; answered when the change is committed.
    AddLearner {
        node: NodeId,
        member: Member,
    },
    /// Make exactly these nodes the voters; each must be a member already. Answered when the change is
    /// committed.
    ChangeVoters {
        voters: BTreeSet<NodeId>,
    },
    /// Change the membership as a client of ZooKeeper's asks for it. Answered with `Reconfigured`.
    Reconfigure(Wanted),
    /// Sessions whose clients have hung up, and had asked that this shortens their time. Comes behind the
    /// touches that these clients caused. Answered with `ClientDisconnectsNoted` by the leader of that term.
    ClientDisconnects {
        /// One per session at most.
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    },
    /// A node that has been started asks what is known of it. Answered with `Introduced` by any node.
    Introduce,
    /// Do what an operator wants. Answered with `Operated`.
    Operate(Operation),
}

/// An answer of another node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Raft(RaftResponse),
    /// The leader's proposer has the batch.
    Forwarded,
    /// The timers have been restarted.
    TouchesNoted {
        /// Sessions whose timers do not run any more: unknown to the leader, or their expiry is decided.
        /// Their heartbeats must not be answered.
        refused: Vec<SessionId>,
        /// How many sessions per second may move from the asking node to the leader; 0: it has no room.
        invites_per_second: u32,
    },
    /// A read that waits for this log index to be applied sees everything that was done before the question
    /// was asked.
    ReadIndex {
        index: u64,
    },
    Status(Status),
    /// The membership change is committed.
    MembershipChanged {
        index: u64,
    },
    /// Nothing was done, for the reason given.
    Refused(Refusal),
    /// The reconfiguration is committed at this log index, or was refused with nothing done.
    Reconfigured(Result<u64, ErrorCode>),
    /// The sessions of `ClientDisconnects` have their shorter time, but for those that are elsewhere by now.
    ClientDisconnectsNoted,
    Introduced(Introduction),
    /// The result of an operator's request as a document, or its error.
    Operated(Result<String, ErrorCode>),
}

/// Why a node did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("this node is not the leader")]
    NotLeader {
        /// As far as known.
        leader: Option<NodeId>,
    },
    /// The leader without a quorum's confirmation.
    #[error("the leader is not in contact with a quorum")]
    NoQuorum,
    /// Its queues are full.
    #[error("the node is overloaded")]
    Overloaded,
    /// It is starting or stopping.
    #[error("the node is not serving")]
    NotServing,
    /// The request itself is wrong, as a membership change that cannot be.
    #[error("{0}")]
    Invalid(String),
}

impl Request {
    /// Its bytes. Those of forwarded proposals, of which there are as many as clients' writes, are a log
    /// entry's ([`Proposal::encode_all`]), which leave out what repeats.
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

    /// The request that all of these bytes are; `max` bounds them.
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

    /// Whether this may be asked on that lane; anything else is a bug of the other side and closes the
    /// connection.
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
            | Request::ChangeVoters { .. }
            | Request::Reconfigure(_)
            | Request::ClientDisconnects { .. }
            | Request::Introduce
            | Request::Operate(_) => lane == Lane::Control,
        }
    }
}
