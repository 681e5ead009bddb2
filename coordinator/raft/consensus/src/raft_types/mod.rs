//! The types that openraft is parameterised with, and Raft's messages. All other code of the crate uses these
//! names.
//!
//! Below `raft/`, which decides, and `peer/`, which carries: neither has to know the other for a word.

pub mod messages;
pub mod runtime;

use std::fmt;

use bytes::Bytes;
use rowlock_proto::NodeId;
use rowlock_types::member::Member;
use rowlock_types::node_hook::Position;
use serde::{Deserialize, Serialize};

use runtime::EnvRuntime;

/// The payload of a normal log entry: an encoded `rowlock_state::command::Batch`.
///
/// It stays encoded from the proposer to apply: followers copy bytes and decode once.
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

/// What a committed entry came to. The origin nodes answer their clients from their own apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryOutcome {
    Applied,
    /// It did not follow the last entry of its term, and nothing of it was applied on any node.
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
    /// Rowlock's choice of types.
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
/// Where a membership change is, or a batch, or nothing.
pub type EntryPayload = openraft::type_config::alias::PayloadOf<TypeConfig>;
/// A term and who led or wants to lead in it.
pub type LeaderId = openraft::type_config::alias::LeaderIdOf<TypeConfig>;
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// As a hook is told of it.
pub fn position(id: LogId) -> Position {
    Position { term: id.leader_id.term, leader: NodeId(id.leader_id.node_id), index: id.index }
}
