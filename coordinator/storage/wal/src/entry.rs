//! Raft's durable data as types of the log: positions, votes, entries, members. Pure.
//!
//! Terms and nodes are numbers here, and commands are bytes: the layer above interprets them. The serde form
//! of these types is the disk format (`docs/protocol.md`): a change of a type changes the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::member::Member;

/// A term, with its leader or candidate.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub leader_id: LeaderId,
    /// True once a quorum has elected the candidate.
    pub committed: bool,
}

impl Vote {
    /// Returns true if `stored` already promises this vote: the candidate of `stored` has been elected.
    pub fn only_confirms(self, stored: Option<Vote>) -> bool {
        self.committed && stored.is_some_and(|stored| stored.leader_id == self.leader_id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub log_id: LogId,
    pub payload: Payload,
}

/// Content of an entry. The order of the variants is part of the format.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    Blank,
    Normal(Bytes),
    /// Membership from this entry on.
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

/// Voters, and the addresses of all members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Sets of voters: two during a change of voters, and a decision needs a quorum of each.
    pub configs: Vec<BTreeSet<u64>>,
    /// All members. A member outside `configs` replicates without a vote.
    pub nodes: BTreeMap<u64, Member>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMembership {
    /// `None` if no entry holds the membership.
    pub log_id: Option<LogId>,
    pub membership: Membership,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SnapshotMetaForm", into = "SnapshotMetaForm")]
pub struct SnapshotMeta {
    /// Last entry applied to the state.
    pub last_log_id: Option<LogId>,
    pub last_membership: StoredMembership,
}

/// Disk form, with a reserved field. The field is always empty.
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
