//! The types that openraft is parameterised with. All other code of the crate uses these names.

use super::runtime::EnvRuntime;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

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

/// What the membership tells about a member, so that a new node can be told where the others are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` for the other nodes. A member that came by a reconfiguration in ZooKeeper's terms may have
    /// a second port behind it (`host:port:election`), which we never dial and only repeat in
    /// /zookeeper/config.
    pub peer_addr: String,
    /// `host:port` for clients.
    pub client_addr: String,
}

impl Member {
    /// `host:port` to dial.
    pub fn dial_addr(&self) -> String {
        let (host, port, _) = self.parts();
        format!("{host}:{port}")
    }

    /// The host that is dialed.
    pub fn host(&self) -> &str {
        self.parts().0
    }

    /// `host:quorum:election`, as ZooKeeper writes it: our one port stands for both of its ports.
    pub fn zookeeper_addr(&self) -> String {
        let (host, port, election) = self.parts();
        format!("{host}:{port}:{}", election.unwrap_or(port))
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

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} client {}", self.peer_addr, self.client_addr)
    }
}

/// What a committed entry came to. The origin nodes answer their clients from their own apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It was applied.
    Applied,
    /// It did not follow the last entry of its term, and nothing of it was applied on any node.
    Skipped,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::Applied => "applied",
            Fate::Skipped => "skipped",
        })
    }
}

openraft::declare_raft_types!(
    /// Rowlock's choice of types.
    pub TypeConfig:
        D = Payload,
        R = Fate,
        NodeId = u64,
        Node = Member,
        AsyncRuntime = EnvRuntime,
);

/// A position in the log.
pub type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
/// A log entry.
pub type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
/// A vote.
pub type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
/// The membership with its position in the log.
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
/// Where a membership change is, or a batch, or nothing.
pub type EntryPayload = openraft::type_config::alias::PayloadOf<TypeConfig>;
/// A term and who led or wants to lead in it.
pub type LeaderId = openraft::type_config::alias::LeaderIdOf<TypeConfig>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
