//! Parameter types of openraft, and Raft's messages. All other code of the crate uses these names.
//!
//! Below `raft/`, which decides, and `peer/`, which transports: so neither depends on the other.

pub mod messages;
pub mod runtime;

use std::fmt;

use bytes::Bytes;
use rowlock_proto::NodeId;
use rowlock_wal::member::Member;
use serde::{Deserialize, Serialize};

use runtime::EnvRuntime;

use crate::node_hook::Position;

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
