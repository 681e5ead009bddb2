//! The first frame of a connection and its answer: are these two nodes of one cluster, and do they speak
//! alike?
//!
//! Magic and version stand in front of everything else at fixed places, so that every future version can
//! still say what is wrong. Nothing else of a connection is decoded before the handshake has passed.

use std::fmt;

use rowlock_proto::{ClusterId, NodeId};
use rowlock_types::codec;
use rowlock_types::incarnation::Incarnation;
use rowlock_types::limits::{PEER_FRAME_MAX_BYTES, PEER_HELLO_MAX_BYTES, PEER_SMALL_FRAME_MAX_BYTES};
use serde::{Deserialize, Serialize};

/// What a connection between nodes begins with.
pub const MAGIC: [u8; 8] = *b"ROWLOCKp";
/// The version of everything between nodes: frames, messages, and the openraft types within them. 1 is that
/// of release 0.2.0. Grows with every release that changes the bytes; nodes of different versions refuse each
/// other.
pub const VERSION: u16 = 1;

const PREFIX_BYTES: usize = MAGIC.len() + 2;

/// Who a node is to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's name, from `cluster.toml`.
    pub cluster: String,
    /// The node's number.
    pub node: NodeId,
}

/// What a connection is for. Each lane is a connection of its own, so that bulk never stands in front of what
/// is urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Log replication: append requests with entries.
    Raft,
    /// Heartbeats, votes, pre-votes, leadership transfer: small, and late is as bad as lost.
    Heartbeat,
    /// Forwarded proposals, one ordered stream ([`super::Stream`]); nothing else.
    Proposals,
    /// Session touches, read index, status, membership changes.
    Control,
    /// Snapshot chunks, one after the other.
    Snapshot,
}

impl Lane {
    /// Largest frame, either way.
    pub fn frame_max_bytes(self) -> usize {
        match self {
            Lane::Raft | Lane::Proposals | Lane::Snapshot => PEER_FRAME_MAX_BYTES,
            Lane::Heartbeat | Lane::Control => PEER_SMALL_FRAME_MAX_BYTES,
        }
    }

    /// Whether the listener must finish one request before it begins the next.
    pub fn is_ordered(self) -> bool {
        matches!(self, Lane::Proposals | Lane::Snapshot)
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lane::Raft => "raft",
            Lane::Heartbeat => "heartbeat",
            Lane::Proposals => "proposals",
            Lane::Control => "control",
            Lane::Snapshot => "snapshot",
        })
    }
}

/// The dialer's first frame, after magic and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The dialer.
    pub from: Identity,
    /// Whom it believes to have dialed.
    pub to: NodeId,
    /// What for.
    pub lane: Lane,
    /// Of the dialer's data folder.
    pub incarnation: Incarnation,
    /// The dialer's cluster, if it knows.
    pub cluster: Option<ClusterId>,
}

/// Why a listener does not talk to a dialer. It repeats what the dialer has said, and names nothing of the
/// listener: whoever asks may be a stranger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum HandshakeRefusal {
    /// Another program, or noise.
    #[error(
        "the other side does not speak Rowlock's node protocol: check that the address is a node's peer address"
    )]
    NotRowlock,
    /// Another version of the protocol.
    #[error(
        "protocol version {theirs} was offered, this node speaks {ours}: run the same release on all nodes"
    )]
    Version {
        /// The listener's.
        ours: u16,
        /// The dialer's.
        theirs: u16,
    },
    /// Another cluster.
    #[error(
        "this node does not belong to cluster {theirs:?}: check the addresses and the name in cluster.toml"
    )]
    Cluster {
        /// The dialer's.
        theirs: String,
    },
    /// A cluster of the same name with another id.
    #[error(
        "this node belongs to another cluster of the same name: one of the two was restored from a backup, or formed \
         anew. Stop the nodes of the old one, and start them again with empty folders to join the new one"
    )]
    ClusterId,
    /// Another node than the one that was meant.
    #[error("this is not node {wanted}: check the addresses in cluster.toml")]
    Node {
        /// Whom the dialer wanted.
        wanted: NodeId,
    },
    /// The dialer says that it is the listener.
    #[error("node {node} is this node itself: two nodes run under one number, or a node dials itself")]
    Itself {
        /// The number that both use.
        node: NodeId,
    },
    /// The node with this number had another data folder before.
    #[error(
        "node {node} comes with another data folder than the one it had before: it may have lost its data, or two nodes \
         run under one number"
    )]
    OtherFolder {
        /// Which.
        node: NodeId,
    },
    /// No room for another connection.
    #[error("this node has as many connections of other nodes as it takes")]
    Full,
    /// The certificate is another node's.
    #[error("the certificate is not that of node {node}")]
    Certificate {
        /// Who the dialer says that it is.
        node: NodeId,
    },
}

/// The body of the dialer's first frame.
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    with_prefix(hello)
}

/// The body of the listener's first frame.
pub fn encode_verdict(verdict: &Result<Incarnation, HandshakeRefusal>) -> Vec<u8> {
    with_prefix(verdict)
}

/// Checks a dialer's first frame against who we are.
pub fn check_hello(body: &[u8], us: &Identity) -> Result<Hello, HandshakeRefusal> {
    let (theirs, rest) = split_prefix(body)?;
    if theirs != VERSION {
        return Err(HandshakeRefusal::Version { ours: VERSION, theirs });
    }
    let hello: Hello = codec::decode(rest, PEER_HELLO_MAX_BYTES).map_err(|_| HandshakeRefusal::NotRowlock)?;
    if hello.from.cluster != us.cluster {
        return Err(HandshakeRefusal::Cluster { theirs: hello.from.cluster });
    }
    if hello.to != us.node {
        return Err(HandshakeRefusal::Node { wanted: hello.to });
    }
    if hello.from.node == us.node {
        return Err(HandshakeRefusal::Itself { node: us.node });
    }
    Ok(hello)
}

/// What the listener's first frame says: its incarnation, or why not.
pub fn check_verdict(body: &[u8]) -> Result<Incarnation, HandshakeRefusal> {
    let (theirs, rest) = split_prefix(body)?;
    let verdict: Result<Result<Incarnation, HandshakeRefusal>, _> = codec::decode(rest, PEER_HELLO_MAX_BYTES);
    match verdict {
        Ok(verdict) => verdict,
        // A later version may have reasons that we do not know.
        Err(_) if theirs != VERSION => Err(HandshakeRefusal::Version { ours: theirs, theirs: VERSION }),
        Err(_) => Err(HandshakeRefusal::NotRowlock),
    }
}

fn with_prefix<T: Serialize>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(PREFIX_BYTES + 64);
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&VERSION.to_be_bytes());
    codec::encode_into(value, &mut body);
    body
}

fn split_prefix(body: &[u8]) -> Result<(u16, &[u8]), HandshakeRefusal> {
    let (prefix, rest) = body.split_first_chunk::<PREFIX_BYTES>().ok_or(HandshakeRefusal::NotRowlock)?;
    let [magic @ .., high, low] = *prefix;
    if magic != MAGIC {
        return Err(HandshakeRefusal::NotRowlock);
    }
    Ok((u16::from_be_bytes([high, low]), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(cluster: &str, node: u64) -> Identity {
        Identity { cluster: cluster.into(), node: NodeId(node) }
    }

    fn hello(cluster: &str, from: u64, to: u64) -> Hello {
        Hello {
            from: identity(cluster, from),
            to: NodeId(to),
            lane: Lane::Raft,
            incarnation: Incarnation(from.into()),
            cluster: None,
        }
    }

    #[test]
    fn nodes_of_one_cluster_accept_each_other() {
        let hello = hello("prod", 1, 2);
        assert_eq!(check_hello(&encode_hello(&hello), &identity("prod", 2)), Ok(hello));
    }

    #[test]
    fn a_strangers_hello_is_refused_with_what_is_wrong() {
        let us = identity("prod", 2);
        let check = |hello: Hello| check_hello(&encode_hello(&hello), &us).expect_err("must be refused");
        assert!(
            matches!(check(hello("test", 1, 2)), HandshakeRefusal::Cluster { theirs } if theirs == "test")
        );
        assert!(matches!(check(hello("prod", 1, 3)), HandshakeRefusal::Node { wanted: NodeId(3) }));
        assert!(matches!(check(hello("prod", 2, 2)), HandshakeRefusal::Itself { .. }));
        let mut later = encode_hello(&hello("prod", 1, 2));
        later[9] = 9;
        let refusal = check_hello(&later, &us).expect_err("must be refused");
        assert_eq!(refusal, HandshakeRefusal::Version { ours: VERSION, theirs: 9 });
    }

    #[test]
    fn every_truncation_of_a_hello_is_refused() {
        let body = encode_hello(&hello("prod", 1, 2));
        for cut in 0..body.len() {
            assert_eq!(check_hello(&body[..cut], &identity("prod", 2)), Err(HandshakeRefusal::NotRowlock));
        }
    }

    #[test]
    fn verdicts_arrive_as_given() {
        for verdict in [
            Ok(Incarnation(u128::MAX)),
            Err(HandshakeRefusal::Full),
            Err(HandshakeRefusal::Itself { node: NodeId(1) }),
        ] {
            assert_eq!(check_verdict(&encode_verdict(&verdict)), verdict);
        }
    }
}
