//! First frame of a connection and its answer: checks that two nodes belong to one cluster and share a
//! protocol version.
//!
//! Invariant: both frames keep their layout for ever, so that nodes of any two releases understand each other
//! up to the verdict, and a refusal carries a readable reason. A later release appends fields; nodes of
//! earlier releases ignore the appended bytes. The rest of a connection uses the version on which the two
//! nodes agree ([`agree`]); neither node decodes any message before the handshake has passed.

use std::fmt;

use rowlock_env::decides;
use rowlock_proto::{ClusterId, Incarnation, NodeId};
use rowlock_state::codec;
use rowlock_state::version::{Build, Versions};
use serde::{Deserialize, Serialize};

use crate::limits::{
    PEER_APPEND_WINDOW_BYTES, PEER_APPEND_WINDOW_REQUESTS, PEER_BACKLOG_MAX_BYTES,
    PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES, PEER_HELLO_MAX_BYTES,
    PEER_IN_FLIGHT_MAX, PEER_SMALL_FRAME_MAX_BYTES,
};

/// First bytes of a connection between nodes.
pub const MAGIC: [u8; 8] = *b"ROWLOCKp";
/// Layout of the two frames, behind the magic. No other layout exists.
const LAYOUT: u16 = 1;

const PREFIX_BYTES: usize = MAGIC.len() + 2;

/// Identity of a node toward other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's name, from `cluster.toml`.
    pub cluster: String,
    pub node: NodeId,
}

/// Purpose of a connection. Each lane is a connection of its own, so that bulk data never delays urgent
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Log replication: append requests with entries.
    Raft,
    /// Heartbeats and pre-votes, answered without a flush: their duration is the round trip.
    Heartbeat,
    /// Forwarded proposals only. After a refusal the listener refuses all later requests.
    Proposals,
    /// Session touches, votes, read index, status, membership changes.
    Control,
    /// Snapshot chunks, one after the other.
    Snapshot,
}

impl Lane {
    pub fn frame_max_bytes(self) -> usize {
        match self {
            Lane::Raft | Lane::Proposals | Lane::Snapshot => PEER_FRAME_MAX_BYTES,
            Lane::Heartbeat | Lane::Control => PEER_SMALL_FRAME_MAX_BYTES,
        }
    }

    /// Returns the most requests without an answer, and the sum of their bytes from which on the dialer sends
    /// no other.
    pub fn window(self) -> (usize, usize) {
        match self {
            Lane::Raft => (PEER_APPEND_WINDOW_REQUESTS, PEER_APPEND_WINDOW_BYTES),
            Lane::Proposals => (PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES),
            Lane::Heartbeat | Lane::Control | Lane::Snapshot => (PEER_IN_FLIGHT_MAX, PEER_BACKLOG_MAX_BYTES),
        }
    }

    /// Returns whether the listener must finish one request before the next begins.
    pub fn is_ordered(self) -> bool {
        matches!(self, Lane::Proposals | Lane::Snapshot)
    }

    /// Returns whether the dialer receives the answers in the order of the requests.
    pub fn keeps_order(self) -> bool {
        self == Lane::Raft || self.is_ordered()
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

/// The dialer's first frame, after magic and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub from: Identity,
    /// Node that the dialer intends to reach.
    pub to: NodeId,
    pub lane: Lane,
    /// Incarnation of the dialer's data folder.
    pub incarnation: Incarnation,
    /// Id of the dialer's cluster, if known to the dialer.
    pub cluster: Option<ClusterId>,
    /// Versions that the dialer supports.
    pub versions: Versions,
}

/// The listener's first frame to an accepted dialer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Incarnation of the listener's data folder.
    pub incarnation: Incarnation,
    /// Versions that the listener supports.
    pub versions: Versions,
}

/// Reason why a listener rejects a dialer. A refusal repeats the dialer's own data and reveals none of the
/// listener's: the dialer may be an intruder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum HandshakeRefusal {
    /// Another program, or noise.
    #[error(
        "the other side does not speak Rowlock's node protocol: check that the address is a node's peer address"
    )]
    NotRowlock,
    /// No version is common to both nodes. Unlike other refusals this one reveals the listener's release, but
    /// only to a dialer that named the listener's cluster.
    #[error(
        "{theirs} and {ours} have no version in common: run the newer release on both nodes. A cluster is upgraded by one \
         release at a time"
    )]
    Version { ours: Versions, theirs: Versions },
    #[error(
        "this node does not belong to cluster {theirs:?}: check the addresses and the name in cluster.toml"
    )]
    Cluster { theirs: String },
    /// Another cluster with the same name has a different id.
    #[error(
        "this node belongs to another cluster of the same name: one of the two was restored from a backup, or formed \
         again. Decide which cluster lives, and keep the folders of the other one (docs/operations.md)"
    )]
    ClusterId,
    /// The dialer wanted another node.
    #[error("this is not node {wanted}: check the addresses in cluster.toml")]
    Node { wanted: NodeId },
    /// The dialer claims the listener's own number.
    #[error("node {node} is this node itself: two nodes run under one number, or a node dials itself")]
    Itself { node: NodeId },
    /// The node with this number had another data folder before.
    #[error(
        "node {node} comes with another data folder than the one it had before: it may have lost its data, or two nodes \
         run under one number"
    )]
    OtherFolder { node: NodeId },
    #[error("this node has as many connections of other nodes as it takes")]
    Full,
    /// The certificate names another node.
    #[error("the certificate is not that of node {node}")]
    Certificate {
        /// Number that the dialer claims.
        node: NodeId,
    },
    /// A later release refused for a reason that this release cannot decode. Never sent.
    #[error("it refuses for a reason that this release does not know: look into its log")]
    Unknown,
    /// Both nodes support a common version but encode that version differently. Reveals the listener's
    /// release, as `Version` does.
    #[error(
        "{theirs} and {ours} are two builds of one release that do not read each other's formats: run the same build on \
         all nodes of a cluster. To go over to the other build with the data, see docs/operations.md, \"Another build of \
         one release\""
    )]
    OtherBuild { ours: String, theirs: String },
}

/// Encodes the body of the dialer's first frame.
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    let mut body = with_prefix(hello);
    codec::encode_into(&*hello.versions.build, &mut body);
    body
}

/// Encodes the body of the listener's first frame.
pub fn encode_verdict(verdict: &Result<Welcome, HandshakeRefusal>) -> Vec<u8> {
    let mut body = with_prefix(verdict);
    if let Ok(welcome) = verdict {
        codec::encode_into(&*welcome.versions.build, &mut body);
    }
    body
}

/// Decodes a dialer's first frame and checks it against this node's identity.
pub fn check_hello(body: &[u8], us: &Identity) -> Result<Hello, HandshakeRefusal> {
    let rest = behind_prefix(body)?;
    let hello = codec::decode_front(rest, PEER_HELLO_MAX_BYTES);
    let (mut hello, read): (Hello, usize) = hello.map_err(|_| HandshakeRefusal::NotRowlock)?;
    hello.versions.build = build_behind(rest, read)?;
    if decides!("peer-is-of-other-cluster", hello.from.cluster != us.cluster) {
        return Err(HandshakeRefusal::Cluster { theirs: hello.from.cluster });
    }
    if decides!("hello-is-for-other-node", hello.to != us.node) {
        return Err(HandshakeRefusal::Node { wanted: hello.to });
    }
    if hello.from.node == us.node {
        return Err(HandshakeRefusal::Itself { node: us.node });
    }
    Ok(hello)
}

/// Returns the version for the rest of the connection. Both nodes compute the same result.
///
/// # Errors
/// [`HandshakeRefusal::Version`]: no common version. [`HandshakeRefusal::OtherBuild`]: the two builds encode
/// the common version differently.
pub fn agree(listener: &Versions, dialer: &Versions) -> Result<u16, HandshakeRefusal> {
    let refusal = || HandshakeRefusal::Version { ours: listener.clone(), theirs: dialer.clone() };
    let version = listener.common(dialer).ok_or_else(refusal)?;
    if listener.build.agrees_with(&dialer.build, version) {
        return Ok(version);
    }
    let named = |versions: &Versions| match versions.build.commit.as_str() {
        "" => format!("{versions} of an unknown commit"),
        commit => format!("{versions} of commit {}", commit.escape_debug()),
    };
    Err(HandshakeRefusal::OtherBuild { ours: named(listener), theirs: named(dialer) })
}

/// Decodes the build appended behind the first `read` bytes. Some builds of 0.2.0 append none.
fn build_behind(frame: &[u8], read: usize) -> Result<Box<Build>, HandshakeRefusal> {
    match frame.get(read..) {
        None | Some([]) => Ok(Box::default()),
        Some(behind) => {
            let build = codec::decode_front(behind, PEER_HELLO_MAX_BYTES);
            build.map(|(build, _)| Box::new(build)).map_err(|_| HandshakeRefusal::NotRowlock)
        }
    }
}

/// Decodes the listener's first frame: the listener's identity, or the refusal.
pub fn check_verdict(body: &[u8]) -> Result<Welcome, HandshakeRefusal> {
    let rest = behind_prefix(body)?;
    let verdict = codec::decode_front(rest, PEER_HELLO_MAX_BYTES);
    let (mut verdict, read): (Result<Welcome, HandshakeRefusal>, usize) = match verdict {
        Ok(read) => read,
        // A refusal with a known prefix and an unknown number.
        Err(_) if rest.len() > 1 && rest[0] == 1 => return Err(HandshakeRefusal::Unknown),
        Err(_) => return Err(HandshakeRefusal::NotRowlock),
    };
    if let Ok(welcome) = &mut verdict {
        welcome.versions.build = build_behind(rest, read)?;
    }
    verdict
}

fn with_prefix<T: Serialize>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(PREFIX_BYTES + 64);
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&LAYOUT.to_be_bytes());
    codec::encode_into(value, &mut body);
    body
}

fn behind_prefix(body: &[u8]) -> Result<&[u8], HandshakeRefusal> {
    let (prefix, rest) = body.split_first_chunk::<PREFIX_BYTES>().ok_or(HandshakeRefusal::NotRowlock)?;
    let [magic @ .., high, low] = *prefix;
    if magic != MAGIC || u16::from_be_bytes([high, low]) != LAYOUT {
        return Err(HandshakeRefusal::NotRowlock);
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use rowlock_state::Layout;

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
            versions: Versions::of_this_release(),
        }
    }

    #[test]
    fn nodes_of_one_cluster_accept_each_other() {
        let hello = hello("prod", 1, 2);
        assert_eq!(check_hello(&encode_hello(&hello), &identity("prod", 2)), Ok(hello));
    }

    #[test]
    fn a_foreign_hello_is_refused_with_its_reason() {
        let us = identity("prod", 2);
        let check = |hello: Hello| check_hello(&encode_hello(&hello), &us).expect_err("must be refused");
        assert!(
            matches!(check(hello("test", 1, 2)), HandshakeRefusal::Cluster { theirs } if theirs == "test")
        );
        assert!(matches!(check(hello("prod", 1, 3)), HandshakeRefusal::Node { wanted: NodeId(3) }));
        assert!(matches!(check(hello("prod", 2, 2)), HandshakeRefusal::Itself { .. }));
    }

    fn versions(least: u16, most: u16, release: &str) -> Versions {
        let layouts = (least..=most).map(|version| (version, Layout(version.into()))).collect();
        Versions {
            least,
            most,
            release: release.to_owned(),
            build: Box::new(Build { commit: "c".to_owned(), layouts }),
        }
    }

    #[test]
    fn two_builds_with_different_layouts_refuse_each_other() {
        let ours = versions(1, 1, "0.2.0");
        let mut other = versions(1, 2, "0.2.0");
        assert_eq!(agree(&ours, &other), Ok(1), "a later release writes the earlier version alike");
        other.build.commit = "39abd609".to_owned();
        other.build.layouts[0].1 = Layout(8);
        let refusal = agree(&ours, &other).expect_err("must be refused");
        let text = check_verdict(&encode_verdict(&Err(refusal))).expect_err("arrives").to_string();
        assert!(text.contains("39abd609") && text.contains("two builds of one release"), "{text}");
    }

    #[test]
    fn a_hello_without_a_build_is_refused_as_another_build() {
        let hello = hello("prod", 1, 2);
        let old = with_prefix(&hello);
        let read = check_hello(&old, &identity("prod", 2)).expect("its frame is read");
        assert_eq!(*read.versions.build, Build::default());
        let refusal = agree(&hello.versions, &read.versions).expect_err("must be refused");
        assert!(refusal.to_string().contains("unknown commit"), "{refusal}");
    }

    #[test]
    fn a_version_refusal_names_both_releases() {
        let (ours, theirs) = (versions(2, 3, "0.4.0"), versions(1, 1, "0.2.0"));
        assert_eq!(agree(&ours, &versions(1, 2, "0.3.0")), Ok(2));
        let refusal = agree(&ours, &theirs).expect_err("must be refused");
        let text = check_verdict(&encode_verdict(&Err(refusal))).expect_err("arrives").to_string();
        assert!(text.contains("0.4.0") && text.contains("0.2.0"), "{text}");
    }

    #[test]
    fn appended_bytes_are_ignored_and_unknown_reasons_refuse() {
        let hello = hello("prod", 1, 2);
        let mut longer = encode_hello(&hello);
        longer.extend_from_slice(b"more");
        assert_eq!(check_hello(&longer, &identity("prod", 2)), Ok(hello));
        let welcome = Welcome { incarnation: Incarnation(1), versions: versions(1, 2, "0.3.0") };
        let mut longer = encode_verdict(&Ok(welcome.clone()));
        longer.push(9);
        assert_eq!(check_verdict(&longer), Ok(welcome));
        let mut other = encode_verdict(&Err(HandshakeRefusal::Full));
        *other.last_mut().expect("has bytes") = 200;
        assert_eq!(check_verdict(&other), Err(HandshakeRefusal::Unknown));
    }

    #[test]
    fn every_truncation_of_a_hello_is_refused() {
        let hello = hello("prod", 1, 2);
        let (body, without_build) = (encode_hello(&hello), with_prefix(&hello).len());
        for cut in (0..body.len()).filter(|cut| *cut != without_build) {
            assert_eq!(check_hello(&body[..cut], &identity("prod", 2)), Err(HandshakeRefusal::NotRowlock));
        }
    }

    #[test]
    fn verdicts_round_trip() {
        for verdict in [
            Ok(Welcome { incarnation: Incarnation(u128::MAX), versions: versions(1, 2, "0.3.0") }),
            Err(HandshakeRefusal::Full),
            Err(HandshakeRefusal::Itself { node: NodeId(1) }),
        ] {
            assert_eq!(check_verdict(&encode_verdict(&verdict)), verdict);
        }
    }
}
