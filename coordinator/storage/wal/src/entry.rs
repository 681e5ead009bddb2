//! Raft's durable data as types of the log: positions, votes, entries, members. Pure.
//!
//! Terms and nodes are numbers here, and commands are bytes: the layer above interprets them. The serde form
//! of these types is the disk format (`docs/protocol.md`): a change of a type changes the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

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

/// A member's entry in the membership: the addresses for nodes and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` for the other nodes. A member from a reconfiguration in ZooKeeper's terms may have a
    /// second port (`host:port:election`), if the port differs from the default of
    /// [`zookeeper_addr`](Member::zookeeper_addr). No node dials the second port.
    pub peer_addr: String,
    pub client_addr: String,
}

impl Member {
    pub fn dial_addr(&self) -> String {
        let (host, port, _) = self.parts();
        format!("{host}:{port}")
    }

    pub fn host(&self) -> &str {
        self.parts().0
    }

    /// Returns `host:quorum:election`, as ZooKeeper writes an address. No node listens at the election port,
    /// but ZooKeeper's parser, which its clients share, refuses a line with two equal ports.
    pub fn zookeeper_addr(&self) -> String {
        let (host, port, election) = self.parts();
        match (election, port.parse()) {
            (None, Ok(port)) => format!("{host}:{port}:{}", election_port(port)),
            _ => format!("{host}:{port}:{}", election.unwrap_or(port)),
        }
    }

    fn parts(&self) -> (&str, &str, Option<&str>) {
        let after_brackets = self.peer_addr.rfind(']').unwrap_or(0);
        let (host, ports) = match self.peer_addr[after_brackets..].find(':') {
            Some(colon) => {
                let (host, ports) = self.peer_addr.split_at(after_brackets + colon);
                (host, &ports[1..])
            }
            None => (self.peer_addr.as_str(), "0"),
        };
        match ports.split_once(':') {
            Some((port, election)) => (host, port, Some(election)),
            None => (host, ports, None),
        }
    }
}

/// Returns the neighbor of a peer port; 65535 has one too.
pub fn election_port(peer: u16) -> u16 {
    peer.checked_add(1).unwrap_or(u16::MAX - 1)
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} client {}", self.peer_addr, self.client_addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_and_election_ports_always_differ() {
        for (peer_addr, shown) in [
            ("h1:2281", "h1:2281:2282"),
            ("[::1]:2281", "[::1]:2281:2282"),
            ("h1:65535", "h1:65535:65534"),
            ("h1:2281:9", "h1:2281:9"),
            ("[fe80::1]:65535:7", "[fe80::1]:65535:7"),
        ] {
            let member = Member { peer_addr: peer_addr.to_owned(), client_addr: String::new() };
            assert_eq!(member.zookeeper_addr(), shown);
            assert_eq!(shown.rsplit_once(':').map(|(dialed, _)| dialed), Some(member.dial_addr().as_str()));
        }
    }
}
