//! What Raft must not forget, in the log's own words: positions, votes, entries, members. Pure.
//!
//! Terms and nodes are numbers here, and commands are bytes: the layer above interprets them. The serde
//! form of these types is the format of the disk (`docs/protocol.md`): a change of one is a change of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use rowlock_types::member::Member;
use serde::{Deserialize, Serialize};

/// A term, and who led or wants to lead in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaderId {
    pub term: u64,
    pub node_id: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogId {
    pub leader_id: LeaderId,
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}.{}", self.leader_id.term, self.leader_id.node_id, self.index)
    }
}

/// For whom the node has voted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The candidate, and the term.
    pub leader_id: LeaderId,
    /// A quorum has voted so.
    pub committed: bool,
}

impl Vote {
    /// Whether this vote promises nothing that `stored` has not promised: the same candidate was elected.
    pub fn only_confirms(self, stored: Option<Vote>) -> bool {
        self.committed && stored.is_some_and(|stored| stored.leader_id == self.leader_id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub log_id: LogId,
    pub payload: Payload,
}

/// The content of an entry. The order of the variants is the format.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    Blank,
    Normal(Bytes),
    /// The membership from here on.
    Membership(Membership),
}

impl Payload {
    pub fn bytes(&self) -> usize {
        match self {
            Payload::Normal(commands) => commands.len(),
            Payload::Blank | Payload::Membership(_) => 0,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Blank => f.write_str("Blank"),
            Payload::Normal(commands) => write!(f, "Normal({} bytes)", commands.len()),
            Payload::Membership(membership) => f.debug_tuple("Membership").field(membership).finish(),
        }
    }
}

/// The voters, and the addresses of all members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// One set of voters, or two while the voters change: then a quorum of each is needed.
    pub configs: Vec<BTreeSet<u64>>,
    /// All members. Those in no set replicate without a vote.
    pub nodes: BTreeMap<u64, Member>,
}

/// A membership, and where in the log it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMembership {
    /// `None`: in no entry.
    pub log_id: Option<LogId>,
    pub membership: Membership,
}

/// The log position and membership that a snapshot covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SnapshotMetaForm", into = "SnapshotMetaForm")]
pub struct SnapshotMeta {
    /// The last entry that it holds the state after.
    pub last_log_id: Option<LogId>,
    pub last_membership: StoredMembership,
}

/// The form on the disk, which has a field that is always empty.
#[derive(Serialize, Deserialize)]
struct SnapshotMetaForm {
    last_log_id: Option<LogId>,
    last_membership: StoredMembership,
    reserved: String,
}

impl From<SnapshotMeta> for SnapshotMetaForm {
    fn from(meta: SnapshotMeta) -> Self {
        let SnapshotMeta { last_log_id, last_membership } = meta;
        SnapshotMetaForm { last_log_id, last_membership, reserved: String::new() }
    }
}

impl From<SnapshotMetaForm> for SnapshotMeta {
    fn from(form: SnapshotMetaForm) -> Self {
        SnapshotMeta { last_log_id: form.last_log_id, last_membership: form.last_membership }
    }
}
