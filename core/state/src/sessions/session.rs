//! One session: its attachment, its ephemeral znodes and its kept outcomes.
//!
//! Knows nothing of other sessions: [`super::table`] contains all sessions and the totals.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use serde::{Deserialize, Serialize};

use crate::arena::Number;
use crate::command::{Attachment, Proof};
use crate::digest::Hasher;
use crate::outcome::Outcomes;
use crate::shared_map::{SharedMap, Slot};

#[derive(Clone, Debug)]
pub struct Session {
    /// Proof of the password, for a returning client.
    pub proof: Proof,
    /// Milliseconds without a keepalive after which the leader expires the session.
    pub timeout_ms: u32,
    /// Longest timeout so far.
    pub(super) longest_timeout_ms: u32,
    /// Number of connections that the session has been attached to.
    pub attachment: Attachment,
    /// Ephemeral znodes by their spots.
    ///
    /// Invariant: exactly the znodes of the tree with this session as `ephemeral_owner`.
    pub(super) ephemerals: Spots,
    /// Probable slot of the newest ephemeral.
    newest: Slot,
    /// Steps that the end of the session takes for its ephemerals ([`crate::cost`]). No snapshot and no
    /// digest contains the steps.
    pub(super) end_steps: u64,
    /// Address of the client at its last acquire, shared by the session's queue positions.
    address: Option<Arc<str>>,
    /// Host that opened the session.
    pub(super) host: Host,
    /// Outcomes of writes that the client may repeat.
    pub(crate) outcomes: Outcomes,
    /// Part of the hash that does not depend on outcomes.
    pub(super) hasher: Hasher,
    /// The whole hash at its last computation.
    pub(super) hash: u64,
}

/// A session and its probable slot among all sessions.
pub(crate) type Near = (SessionId, Slot);

/// Sort key of an ephemeral znode within its session: the parent's number, then the path. A search compares
/// paths only among children of one parent.
///
/// Invariant: the numbers are local to this node. Code that shows an order to clients or other nodes sorts by
/// path first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    parent: Number,
    pub(super) path: Arc<str>,
}

/// A session's ephemeral znodes.
type Spots = SharedMap<Spot, Number>;

/// The parent's number, and the znode's path.
pub(crate) type Below<'a> = (Number, &'a str);

/// Compares spots with this one.
fn order((parent, path): Below<'_>) -> impl Fn(&Spot) -> Ordering {
    move |spot| spot.parent.cmp(&parent).then_with(|| (*spot.path).cmp(path))
}

impl Session {
    pub(crate) fn new(proof: Proof, timeout_ms: u32, attachment: Attachment) -> Self {
        Session {
            proof,
            timeout_ms,
            longest_timeout_ms: timeout_ms,
            attachment,
            ephemerals: SharedMap::default(),
            newest: Slot::default(),
            end_steps: 0,
            address: None,
            host: Host::UNKNOWN,
            outcomes: Outcomes::default(),
            hasher: Hasher::new(2),
            hash: 0,
        }
    }

    /// Returns the longest timeout so far: a client may rely on any earlier timeout.
    pub fn longest_timeout_ms(&self) -> u32 {
        self.longest_timeout_ms
    }

    /// Returns the bytes of the kept outcomes.
    pub fn outcome_bytes(&self) -> usize {
        self.outcomes.bytes()
    }

    /// Iterates over the paths of the ephemeral znodes, in an order local to this node.
    pub fn ephemerals(&self) -> impl Iterator<Item = &str> {
        self.ephemerals.iter().map(|(spot, _)| &*spot.path)
    }

    /// Returns the ephemeral znodes in the order of their paths.
    pub fn ephemerals_in_order(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = self.ephemerals().collect();
        paths.sort_unstable();
        paths
    }

    /// Iterates over the spots of the ephemeral znodes and their numbers in the tree.
    pub(crate) fn spots(&self) -> impl Iterator<Item = (Below<'_>, Number)> {
        self.ephemerals.iter().map(|(spot, id)| ((spot.parent, &*spot.path), *id))
    }

    /// Iterates over the shared paths of the ephemeral znodes and their numbers in the tree.
    pub(crate) fn shared_ephemerals(&self) -> impl Iterator<Item = (&Arc<str>, Number)> {
        self.ephemerals.iter().map(|(spot, id)| (&spot.path, *id))
    }

    /// Iterates over the ephemeral znodes below one parent, by path, from the given one on.
    pub(crate) fn ephemerals_below(&self, from: Below<'_>) -> impl Iterator<Item = (&Arc<str>, Number)> {
        let alike = self.ephemerals.starting_by(order(from));
        alike.take_while(move |(spot, _)| spot.parent == from.0).map(|(spot, id)| (&spot.path, *id))
    }

    /// Returns the number of ephemeral znodes.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.len()
    }

    /// Returns the client's address, shared by all queue positions of the session.
    pub(super) fn shared_address(&mut self, address: &str) -> Arc<str> {
        match &self.address {
            Some(known) if **known == *address => known.clone(),
            _ => self.address.insert(address.into()).clone(),
        }
    }

    /// Returns the steps that the end of the session takes for its znodes.
    pub(crate) fn end_steps(&self) -> u64 {
        self.end_steps
    }

    pub(super) fn add(&mut self, parent: Number, path: Arc<str>, id: Number) {
        assert_ne!(parent, id, "{path} is below itself");
        let place = self.ephemerals.find_by(order((parent, &path))).expect_err("a znode is created once");
        self.newest = self.ephemerals.insert_at(place, Spot { parent, path }, id);
    }

    /// Returns the slot of an ephemeral znode of this session.
    pub(super) fn find(&self, below: Below<'_>, id: Number) -> Option<Slot> {
        let is_newest = self.ephemerals.get_at(self.newest).is_some_and(|(_, newest)| *newest == id);
        if is_newest { Some(self.newest) } else { self.ephemerals.find_by(order(below)).ok() }
    }

    pub(super) fn hasher(&self, id: SessionId) -> Hasher {
        let hasher = Hasher::new(2)
            .int(id.0)
            .bytes(&self.proof.0)
            .word(u64::from(self.timeout_ms))
            .word(self.attachment.0);
        let longer = (self.longest_timeout_ms != self.timeout_ms).then_some(self.longest_timeout_ms.into());
        let host = (self.host != Host::UNKNOWN).then(|| self.host.words());
        longer.into_iter().chain(host.into_iter().flatten()).fold(hasher, Hasher::word)
    }

    /// Recomputes the session's hash. Returns the new and the previous hash.
    pub(super) fn rehash(&mut self) -> (u64, u64) {
        debug_assert!(self.timeout_ms <= self.longest_timeout_ms, "a timeout is longer than the longest one");
        let new = self.outcomes.add_to(self.hasher).finish();
        (new, std::mem::replace(&mut self.hash, new))
    }

    /// Sets the host that opened the session.
    pub(crate) fn opened_from(self, host: Host) -> Self {
        Session { host, ..self }
    }

    /// Returns the host that opened the session.
    pub fn host(&self) -> Host {
        self.host
    }
}

/// Host that opened a session: an IPv4 address, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host(u128);

impl Host {
    /// Unknown address. All sessions of unknown addresses count as sessions of one host.
    pub const UNKNOWN: Host = Host(0);

    pub fn of(address: IpAddr) -> Host {
        match address.to_canonical() {
            IpAddr::V4(v4) => Host(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) if v6.is_loopback() => Host(v6.to_bits()),
            IpAddr::V6(v6) => Host(v6.to_bits() >> 64 << 64),
        }
    }

    pub(super) fn among(who: &[Id]) -> Host {
        let address = who.iter().find(|id| id.scheme == "ip").and_then(|id| id.id.parse().ok());
        address.map_or(Host::UNKNOWN, Host::of)
    }

    pub(super) fn words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }
}
