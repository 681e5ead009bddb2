//! The first frame of a connection and its answer: are these two nodes of one cluster, and do they speak
//! alike?
//!
//! Invariant: both frames keep their layout for ever, so that nodes of any two releases understand each other
//! this far, and can say in words that they do not go together. What a later release adds stands behind what
//! is here, and is ignored by those that do not know it. Everything else of a connection is of the version
//! that the two agree on ([`agree`]); nothing of it is decoded before the handshake has passed.

use std::fmt;

use rowlock_proto::{ClusterId, NodeId};
use rowlock_types::codec;
use rowlock_types::incarnation::Incarnation;
use rowlock_types::limits::{
    PEER_APPEND_WINDOW_BYTES, PEER_APPEND_WINDOW_REQUESTS, PEER_BACKLOG_MAX_BYTES,
    PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES, PEER_FRAME_MAX_BYTES, PEER_HELLO_MAX_BYTES,
    PEER_IN_FLIGHT_MAX, PEER_SMALL_FRAME_MAX_BYTES,
};
use rowlock_types::versions::{Build, Versions};
use serde::{Deserialize, Serialize};

/// What a connection between nodes begins with.
pub const MAGIC: [u8; 8] = *b"ROWLOCKp";
/// The layout of the two frames, behind the magic. There is no other.
const LAYOUT: u16 = 1;

const PREFIX_BYTES: usize = MAGIC.len() + 2;

/// Who a node is to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's name, from `cluster.toml`.
    pub cluster: String,
    pub node: NodeId,
}

/// What a connection is for. Each lane is a connection of its own, so that bulk never stands in front of what
/// is urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Log replication: append requests with entries.
    Raft,
    /// Heartbeats and pre-votes, which are answered without a flush: their time is the round trip.
    Heartbeat,
    /// Forwarded proposals; nothing else. After a refusal the listener refuses all that follows.
    Proposals,
    /// Session touches, votes, read index, status, membership changes.
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

    /// Most requests without an answer, and the bytes of them from which on no other is sent.
    pub fn window(self) -> (usize, usize) {
        match self {
            Lane::Raft => (PEER_APPEND_WINDOW_REQUESTS, PEER_APPEND_WINDOW_BYTES),
            Lane::Proposals => (PEER_FORWARD_WINDOW_BATCHES, PEER_FORWARD_WINDOW_BYTES),
            Lane::Heartbeat | Lane::Control | Lane::Snapshot => (PEER_IN_FLIGHT_MAX, PEER_BACKLOG_MAX_BYTES),
        }
    }

    /// Whether the listener must finish one request before it begins the next.
    pub fn is_ordered(self) -> bool {
        matches!(self, Lane::Proposals | Lane::Snapshot)
    }

    /// Whether the dialer hears the answers in the order of their requests.
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
    /// Whom it believes to have dialed.
    pub to: NodeId,
    pub lane: Lane,
    /// Of the dialer's data folder.
    pub incarnation: Incarnation,
    /// The dialer's cluster, if it knows.
    pub cluster: Option<ClusterId>,
    /// Those that the dialer knows.
    pub versions: Versions,
}

/// The listener's first frame to a dialer that may stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Of the listener's data folder.
    pub incarnation: Incarnation,
    /// Those that the listener knows.
    pub versions: Versions,
}

/// Why a listener does not talk to a dialer. It repeats what the dialer has said, and names nothing of the
/// listener: the peer may be a stranger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum HandshakeRefusal {
    /// Another program, or noise.
    #[error(
        "the other side does not speak Rowlock's node protocol: check that the address is a node's peer address"
    )]
    NotRowlock,
    /// No version is known to both. The only refusal that says something of the listener, and only to a
    /// dialer that has named its cluster.
    #[error(
        "{theirs} and {ours} have no version in common: run the newer release on both nodes. A cluster is upgraded by one          release at a time"
    )]
    Version { ours: Versions, theirs: Versions },
    #[error(
        "this node does not belong to cluster {theirs:?}: check the addresses and the name in cluster.toml"
    )]
    Cluster { theirs: String },
    /// A cluster of the same name with another id.
    #[error(
        "this node belongs to another cluster of the same name: one of the two was restored from a backup, or formed \
         again. Decide which cluster lives, and keep the folders of the other one (docs/runbook.md)"
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
    OtherFolder { node: NodeId },
    /// No room for another connection.
    #[error("this node has as many connections of other nodes as it takes")]
    Full,
    /// The certificate is another node's.
    #[error("the certificate is not that of node {node}")]
    Certificate {
        /// Who the dialer says that it is.
        node: NodeId,
    },
    /// The listener is of a later release, and has a reason that this one does not know. Never sent.
    #[error("it refuses for a reason that this release does not know: look into its log")]
    Unknown,
    /// Both know a version, and write it in two ways. Says something of the listener, as `Version` does.
    #[error(
        "{theirs} and {ours} are two builds of one release that do not read each other's formats: run the same build on \
         all nodes of a cluster. To go over to the other build with the data, see docs/maintenance.md, \"Another build of \
         one release\""
    )]
    OtherBuild { ours: String, theirs: String },
}

/// The body of the dialer's first frame.
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    let mut body = with_prefix(hello);
    codec::encode_into(&*hello.versions.build, &mut body);
    body
}

/// The body of the listener's first frame.
pub fn encode_verdict(verdict: &Result<Welcome, HandshakeRefusal>) -> Vec<u8> {
    let mut body = with_prefix(verdict);
    if let Ok(welcome) = verdict {
        codec::encode_into(&*welcome.versions.build, &mut body);
    }
    body
}

/// Checks a dialer's first frame against who we are.
pub fn check_hello(body: &[u8], us: &Identity) -> Result<Hello, HandshakeRefusal> {
    let rest = behind_prefix(body)?;
    let hello = codec::decode_front(rest, PEER_HELLO_MAX_BYTES);
    let (mut hello, read): (Hello, usize) = hello.map_err(|_| HandshakeRefusal::NotRowlock)?;
    hello.versions.build = build_behind(rest, read)?;
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

/// The version of everything behind the handshake, which both sides find by themselves.
///
/// # Errors
/// [`HandshakeRefusal::Version`]: there is none. [`HandshakeRefusal::OtherBuild`]: they write it in two ways.
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

/// The build behind what was read. Some builds of 0.2.0 say nothing of themselves.
fn build_behind(frame: &[u8], read: usize) -> Result<Box<Build>, HandshakeRefusal> {
    match frame.get(read..) {
        None | Some([]) => Ok(Box::default()),
        Some(behind) => {
            let build = codec::decode_front(behind, PEER_HELLO_MAX_BYTES);
            build.map(|(build, _)| Box::new(build)).map_err(|_| HandshakeRefusal::NotRowlock)
        }
    }
}

/// What the listener's first frame says: who it is, or why not.
pub fn check_verdict(body: &[u8]) -> Result<Welcome, HandshakeRefusal> {
    let rest = behind_prefix(body)?;
    let verdict = codec::decode_front(rest, PEER_HELLO_MAX_BYTES);
    let (mut verdict, read): (Result<Welcome, HandshakeRefusal>, usize) = match verdict {
        Ok(read) => read,
        // A refusal that begins as ours do, with a number that we do not know.
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
    fn a_strangers_hello_is_refused_with_what_is_wrong() {
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
    fn two_builds_that_write_one_version_otherwise_refuse_each_other_and_say_which_they_are() {
        let ours = versions(1, 1, "0.2.0");
        let mut other = versions(1, 2, "0.2.0");
        assert_eq!(agree(&ours, &other), Ok(1), "a later release writes the earlier version alike");
        other.build.commit = "39abd609".to_owned();
        other.build.layouts[0].1 = Layout(8);
        let refusal = agree(&ours, &other).expect_err("must be refused");
        let told = check_verdict(&encode_verdict(&Err(refusal))).expect_err("arrives").to_string();
        assert!(told.contains("39abd609") && told.contains("two builds of one release"), "{told}");
    }

    #[test]
    fn a_build_that_says_nothing_of_itself_is_another_one() {
        let hello = hello("prod", 1, 2);
        let old = with_prefix(&hello);
        let read = check_hello(&old, &identity("prod", 2)).expect("its frame is read");
        assert_eq!(*read.versions.build, Build::default());
        let refusal = agree(&hello.versions, &read.versions).expect_err("must be refused");
        assert!(refusal.to_string().contains("unknown commit"), "{refusal}");
    }

    #[test]
    fn nodes_without_a_common_version_are_told_both_releases() {
        let (ours, theirs) = (versions(2, 3, "0.4.0"), versions(1, 1, "0.2.0"));
        assert_eq!(agree(&ours, &versions(1, 2, "0.3.0")), Ok(2));
        let refusal = agree(&ours, &theirs).expect_err("must be refused");
        let told = check_verdict(&encode_verdict(&Err(refusal))).expect_err("arrives").to_string();
        assert!(told.contains("0.4.0") && told.contains("0.2.0"), "{told}");
    }

    #[test]
    fn what_a_later_release_adds_behind_is_ignored_and_its_reasons_are_refusals() {
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
    fn verdicts_arrive_as_given() {
        for verdict in [
            Ok(Welcome { incarnation: Incarnation(u128::MAX), versions: versions(1, 2, "0.3.0") }),
            Err(HandshakeRefusal::Full),
            Err(HandshakeRefusal::Itself { node: NodeId(1) }),
        ] {
            assert_eq!(check_verdict(&encode_verdict(&verdict)), verdict);
        }
    }
}
