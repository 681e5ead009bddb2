//! One position in a queue: the request behind the position, its sort key, its owner for deadlock detection,
//! and the limits of queues.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use rowlock_proto::acl::Id;
use rowlock_proto::lock::{Acquire, Mode, Owner, place_number};
use rowlock_proto::{SessionId, Zxid};
use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

use super::question::{Deadline, Question};
use crate::acl::is_proof;
use crate::arena::Number;
use crate::command::Author;
use crate::digest::Hasher;
use crate::guard::decides;
use crate::outcome::EndReason;
use crate::sequence;

/// A holder or waiter. The position lives as long as its znode; the contender has the data that the tree
/// lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contender {
    pub session: SessionId,
    pub mode: Mode,
    /// Result of [`owner_of`], for deadlock detection.
    pub owner: Owner,
    pub is_acquired: bool,
    pub max_hold_ms: u32,
    pub lock_delay_ms: u32,
    pub min_hold_ms: u32,
    pub min_hold_lapses: bool,
    /// Time of entry into the queue.
    pub requested_ms: i64,
    /// Time of the grant.
    ///
    /// Invariant: `Some` for holders, `None` for waiters.
    pub granted_ms: Option<i64>,
    /// Time at which the leader revokes the hold; `None` for waiters, and for holds without a maximum and
    /// without a deadline.
    pub revoke_at_ms: Option<i64>,
    /// The newest question to this holder.
    ///
    /// Invariant: `None` for waiters. (Snapshots have a record of their own for questions.)
    #[serde(skip)]
    pub asked: Option<Arc<Question>>,
    /// Address of the client at the entry; empty if unknown.
    pub address: Arc<str>,
    /// Number of the queue znode in the tree.
    #[serde(skip)]
    pub node: Number,
    /// Result of [`Contender::hash`] at the entry, for removal from the sum.
    #[serde(skip)]
    counted_hash: u64,
}

impl Contender {
    /// Returns the mode of a position created by a plain create, from its name, by the conventions of
    /// Curator's and kazoo's recipes.
    pub(crate) fn plain_mode(name: &str) -> Mode {
        if name.contains("__READ__") || name.contains("__rlock__") {
            Mode::Shared
        } else if name.contains("-lease-") {
            Mode::Permits(1)
        } else {
            Mode::Exclusive
        }
    }

    /// Makes the contender of a plain create.
    pub(crate) fn plain(mode: Mode, session: SessionId, address: Arc<str>, now_ms: i64) -> Self {
        Contender {
            session,
            mode,
            owner: Owner::Unnamed,
            is_acquired: false,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
            requested_ms: now_ms,
            granted_ms: None,
            revoke_at_ms: None,
            asked: None,
            address,
            node: Number::default(),
            counted_hash: 0,
        }
    }

    /// Makes the contender of an acquire.
    pub(crate) fn acquired(acquire: &Acquire, by: &Author, address: Arc<str>, now_ms: i64) -> Self {
        Contender {
            owner: owner_of(acquire.owner, by),
            is_acquired: true,
            max_hold_ms: acquire.max_hold_ms,
            lock_delay_ms: acquire.lock_delay_ms,
            min_hold_ms: acquire.min_hold_ms,
            min_hold_lapses: acquire.min_hold_lapses,
            ..Contender::plain(acquire.mode, by.session, address, now_ms)
        }
    }

    /// Returns the deadline of the questions to this holder, if any.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.asked.as_ref()?.deadline
    }

    /// Returns whether the leader will revoke the hold at some time.
    pub(super) fn is_revoked(&self) -> bool {
        self.max_hold_ms != 0 || self.deadline().is_some()
    }

    /// Returns the permits taken from the limit.
    pub(crate) fn permits(&self) -> u64 {
        match self.mode {
            Mode::Permits(permits) => u64::from(permits),
            Mode::Exclusive | Mode::Shared => 0,
        }
    }

    /// Returns the end of the delay that follows if this position ends now for this reason; `None` if the
    /// lock is free at once.
    pub(super) fn delays_until_ms(&self, why: EndReason, now_ms: i64) -> Option<i64> {
        let granted_ms = self.granted_ms?;
        assert!(granted_ms <= now_ms, "a hold ends before it begins");
        let may_believe = matches!(why, EndReason::SessionExpired | EndReason::SessionEnded);
        let lock_delay_ms =
            if decides!("lock-delay-counts", may_believe) { i64::from(self.lock_delay_ms) } else { 0 };
        let counts = decides!(
            "min-hold-counts",
            why != EndReason::Forced && (why == EndReason::Released || !self.min_hold_lapses)
        );
        let min_hold_ms = if counts { i64::from(self.min_hold_ms) } else { 0 };
        let until_ms = now_ms.saturating_add(lock_delay_ms).max(granted_ms.saturating_add(min_hold_ms));
        (until_ms > now_ms).then_some(until_ms)
    }

    /// Returns whether the hash still equals the counted hash. Only for assertions.
    pub(super) fn is_counted(&self, lock: &str, key: &Key) -> bool {
        crate::steps::uncounted(|| self.counted_hash == self.hash(hasher(lock), lock.len(), key))
    }

    /// Returns the contribution to the digest as last counted.
    pub(crate) fn counted_hash(&self) -> u64 {
        self.counted_hash
    }

    /// Computes the contribution to the digest anew, and counts it.
    pub(crate) fn count_hash(&mut self, lock: (Hasher, usize), key: &Key) -> u64 {
        self.counted_hash = self.hash(lock.0, lock.1, key);
        self.counted_hash
    }

    fn hash(&self, lock: Hasher, path_len: usize, key: &Key) -> u64 {
        let (mode, permits) = match self.mode {
            Mode::Exclusive => (0, 0),
            Mode::Shared => (1, 0),
            Mode::Permits(permits) => (2, permits),
        };
        let (owner, number) = match self.owner {
            Owner::Unnamed => (0, 0),
            Owner::Session => (1, 0),
            Owner::Named(number) => (2, number),
            Owner::Under(number) => (3, number),
        };
        let name = &key.path[path_len + usize::from(path_len != 1)..];
        let hasher = lock
            .int(key.czxid.0)
            .bytes(name.as_bytes())
            .int(self.session.0)
            .word(mode)
            .word(u64::from(permits))
            .word(owner)
            .word(number)
            .word(u64::from(self.is_acquired))
            .word(u64::from(self.max_hold_ms))
            .word(u64::from(self.lock_delay_ms))
            .word(u64::from(self.min_hold_ms))
            .word(u64::from(self.min_hold_lapses))
            .int(self.requested_ms)
            .int(self.granted_ms.unwrap_or(-1))
            .int(self.revoke_at_ms.unwrap_or(-1))
            .bytes(self.address.as_bytes());
        self.asked.iter().fold(hasher, |hasher, asked| asked.hash(hasher)).finish()
    }
}

/// Returns the initial hasher for positions in the queue of the lock at this path.
pub(super) fn hasher(lock: &str) -> Hasher {
    Hasher::new(6).bytes(lock.as_bytes())
}

/// Returns the owner to keep and compare. A named owner belongs to one user: no other user can claim the
/// name.
pub(super) fn owner_of(owner: Owner, by: &Author) -> Owner {
    match owner {
        Owner::Named(number) => Owner::Named(of_user(number, by.who)),
        other => other,
    }
}

/// Returns the number of a user's owner, derived from the user's first proven identity, or from the address
/// without one. No other user can find a number with the same result.
pub(super) fn of_user(number: u64, who: &[Id]) -> u64 {
    let proven = who.iter().find(|id| is_proof(&id.scheme));
    let Some(user) = proven.or_else(|| who.iter().find(|id| id.scheme == "ip")) else { return number };
    let hash = Sha1::new().chain_update(number.to_be_bytes()).chain_update(&user.scheme);
    let hash = hash.chain_update([0]).chain_update(&user.id).finalize();
    let (first, _) = hash.split_first_chunk().expect("a SHA-1 has 20 bytes");
    u64::from_be_bytes(*first)
}

/// Returns the address that a client has connected from; empty if unknown.
pub(crate) fn address_in(who: &[Id]) -> &str {
    who.iter().find(|id| id.scheme == "ip").map_or("", |id| &id.id)
}

/// A position in a queue. The key shares the path with the session's list of ephemerals.
///
/// The order is the order of creation. Positions made by one multi have one czxid; their numbers give the
/// order, since the lock's znode counts its creates one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The czxid of the queue znode; the fencing token.
    pub czxid: Zxid,
    pub path: Arc<str>,
}

/// A key for lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRef<'a> {
    pub czxid: Zxid,
    pub path: &'a str,
}

impl Key {
    /// Returns a key in front of all possible positions.
    pub(super) fn before_all() -> Key {
        Key { czxid: Zxid(i64::MIN), path: Arc::from("") }
    }

    pub(crate) fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { czxid: self.czxid, path: &self.path }
    }
}

impl Ord for KeyRef<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |key: &Self| sequence::ordinal(key.path);
        self.czxid
            .cmp(&other.czxid)
            // The usual case ends here: one command makes one position.
            .then_with(|| {
                if self.path == other.path { Ordering::Equal } else { number(self).cmp(&number(other)) }
            })
            .then_with(|| self.path.cmp(other.path))
    }
}

impl PartialOrd for KeyRef<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().cmp(&other.as_ref())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the path of a queue znode.
pub(crate) fn queue_path(lock: &str, name: &str) -> String {
    rowlock_proto::path::join(lock, name)
}

/// The waiting or holding party for deadlock detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnerKey {
    Session(SessionId),
    Named(u64),
    /// All work under a certain position; the work keeps the position's maker from releasing. Work from
    /// another address than the maker's does not count: the maker does not wait for such work.
    Under(u64, u128),
}

impl OwnerKey {
    pub(crate) fn new(owner: Owner, session: SessionId) -> Option<Self> {
        match owner {
            Owner::Unnamed => None,
            Owner::Session | Owner::Under(_) => Some(OwnerKey::Session(session)),
            Owner::Named(number) => Some(OwnerKey::Named(number)),
        }
    }

    /// Returns the key of the position that the owner works under.
    pub(crate) fn works_under(owner: Owner, address: &str) -> Option<Self> {
        match owner {
            Owner::Under(number) => Some(OwnerKey::Under(number, number_of(address))),
            Owner::Unnamed | Owner::Session | Owner::Named(_) => None,
        }
    }

    /// Returns the key of workers under this place.
    pub(super) fn workers_of(place: &Key, maker: &Contender) -> Self {
        OwnerKey::Under(place_number(&place.path), number_of(&maker.address))
    }
}

/// Returns an address as a number; 0 if unknown.
fn number_of(address: &str) -> u128 {
    match address.parse() {
        Ok(IpAddr::V4(v4)) => v4.to_ipv6_mapped().to_bits(),
        Ok(IpAddr::V6(v6)) => v6.to_bits(),
        Err(_) => 0,
    }
}

/// Iterates over the keys of a contender.
pub(super) fn owners(contender: &Contender) -> impl Iterator<Item = OwnerKey> {
    let own = OwnerKey::new(contender.owner, contender.session);
    own.into_iter().chain(OwnerKey::works_under(contender.owner, &contender.address))
}

/// Limit of contenders of one lock. Acquires beyond get `QuotaExceeded`; plain creates have no limit. The
/// leader's limit is lower ([`crate::cost::QUEUE_PLACES_MAX`]).
pub const QUEUE_MAX: usize = 100_000;

/// Limit of locks in one acquire, and of claims in one release. Beyond: `BadArguments`.
pub const PLACES_MAX: usize = 1_024;

/// Limit of a queue znode's data shown to other clients, in bytes.
pub const LABEL_MAX: usize = 256;

/// Limit of a queue znode's path shown to other clients, in bytes. Longer paths lose their end.
pub const PARTY_PATH_MAX: usize = 1_024;

/// Limit of other clients' names in one answer, in bytes; an answer omits further names. The rest of an
/// answer belongs to the client, and is no longer than the request.
pub const PARTIES_MAX_BYTES: usize = 64 << 10;
