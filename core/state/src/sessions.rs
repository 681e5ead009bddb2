//! Sessions of all clients of all nodes, and the commands that open, move and end sessions.
//!
//! Keepalives never enter the log: only the leader keeps their times, and proposes expiries.

mod hosts;

use std::cmp::Ordering;
use std::sync::Arc;

use rowlock_proto::acl::Id;
use rowlock_proto::path::levels;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, NodeId, SessionId, Zxid};

use crate::arena::Number;
use crate::command::{Attachment, Proposal};
use crate::cost::{END_GRANTS_MAX, end_steps, end_steps_at};
use crate::dedup::Outcomes;
use crate::digest::Hasher;
use crate::guard::decides;
use crate::guesses::LookupHints;
use crate::locks::{Cause, address_in};
use crate::machine::Machine;
use crate::ops::Done;
use crate::outcome::{Attached, EndReason, EventSink, SessionEnd};
use crate::proof::Proof;
use crate::shared_map::{SharedMap, Slot};
use crate::steps;
pub use hosts::{Host, LASTING_MS, Opened};

#[derive(Clone, Debug)]
pub struct Session {
    /// Proof of the password, for a returning client.
    pub proof: Proof,
    /// Milliseconds without a keepalive after which the leader expires the session.
    pub timeout_ms: u32,
    /// Longest timeout so far.
    longest_timeout_ms: u32,
    /// Number of connections that the session has been attached to.
    pub attachment: Attachment,
    /// Ephemeral znodes by their spots.
    ///
    /// Invariant: exactly the znodes of the tree with this session as `ephemeral_owner`.
    ephemerals: Spots,
    /// Probable slot of the newest ephemeral.
    newest: Slot,
    /// Steps that the end of the session takes for its ephemerals ([`crate::cost`]). No snapshot and no
    /// digest contains the steps.
    end_steps: u64,
    /// Address of the client at its last acquire, shared by the session's queue positions.
    address: Option<Arc<str>>,
    /// Host that opened the session.
    host: Host,
    /// Outcomes of writes that the client may repeat.
    pub(crate) outcomes: Outcomes,
    /// Part of the hash that does not depend on outcomes.
    hasher: Hasher,
    /// The whole hash at its last computation.
    hash: u64,
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
    path: Arc<str>,
}

/// A session's ephemeral znodes.
pub(crate) type Spots = SharedMap<Spot, Number>;

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
    fn shared_address(&mut self, address: &str) -> Arc<str> {
        match &self.address {
            Some(known) if **known == *address => known.clone(),
            _ => self.address.insert(address.into()).clone(),
        }
    }

    /// Returns the steps that the end of the session takes for its znodes.
    pub(crate) fn end_steps(&self) -> u64 {
        self.end_steps
    }

    fn add(&mut self, parent: Number, path: Arc<str>, id: Number) {
        assert_ne!(parent, id, "{path} is below itself");
        let place = self.ephemerals.find_by(order((parent, &path))).expect_err("a znode is created once");
        self.newest = self.ephemerals.insert_at(place, Spot { parent, path }, id);
    }

    /// Returns the slot of an ephemeral znode of this session.
    fn find(&self, below: Below<'_>, id: Number) -> Option<Slot> {
        let is_newest = self.ephemerals.get_at(self.newest).is_some_and(|(_, newest)| *newest == id);
        if is_newest { Some(self.newest) } else { self.ephemerals.find_by(order(below)).ok() }
    }

    fn hasher(&self, id: SessionId) -> Hasher {
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
    fn rehash(&mut self) -> (u64, u64) {
        debug_assert!(self.timeout_ms <= self.longest_timeout_ms, "a timeout is longer than the longest one");
        let new = self.outcomes.add_to(self.hasher).finish();
        (new, std::mem::replace(&mut self.hash, new))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    map: SharedMap<SessionId, Session>,
    hints: LookupHints,
    hosts: hosts::Hosts,
    /// Sum of the sessions' hashes.
    digest: u64,
    /// Bytes of all kept outcomes.
    outcome_bytes: usize,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.map.get(&id)
    }

    /// Returns a session; faster if the session is in the probable slot.
    pub(crate) fn get_near(&self, (id, guess): Near) -> Option<&Session> {
        self.map.find_near(&id, guess).ok().map(|place| self.map.at(place).1)
    }

    /// Returns the session's slot.
    fn find(&self, id: SessionId) -> Option<Slot> {
        let hash = Hasher::new(0).int(id.0).finish();
        let is_it = |raw| self.map.get_at(Slot::from_raw(raw)).is_some_and(|(known, _)| *known == id);
        if let Some(raw) = self.hints.find(hash, is_it) {
            steps::take(1);
            return Some(Slot::from_raw(raw));
        }
        let place = self.map.find(&id).ok()?;
        self.hints.record(hash, place.raw());
        Some(place)
    }

    /// Returns an open session for a change.
    #[inline(always)]
    fn open_mut(&mut self, (id, guess): Near) -> &mut Session {
        let place = self.map.find_near(&id, guess).expect("the caller has found the session");
        self.map.at_mut(place).1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.map.iter().map(|(id, session)| (*id, session))
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the bytes of the outcomes of all sessions.
    pub(crate) fn outcome_bytes(&self) -> usize {
        self.outcome_bytes
    }

    /// Opens a session with a new id.
    pub(crate) fn open(&mut self, id: SessionId, mut session: Session) {
        assert_ne!(id, SessionId::NONE, "a session has an id");
        assert!(
            session.ephemerals.is_empty() && session.outcomes.is_empty(),
            "a new session has nothing yet"
        );
        session.hasher = session.hasher(id);
        self.digest = self.digest.wrapping_add(session.rehash().0);
        self.hosts.add(&session);
        let old = self.map.insert(id, session);
        self.hints.fit(self.map.len());
        assert!(old.is_none(), "session ids are made from zxids and never come twice");
    }

    /// Moves an open session to its next attachment.
    pub(crate) fn attach(&mut self, id: SessionId, timeout_ms: u32) -> Attachment {
        self.change(id, |session| {
            session.attachment.0 += 1;
            session.timeout_ms = timeout_ms;
            session.longest_timeout_ms = session.longest_timeout_ms.max(timeout_ms);
        });
        self.get(id).expect("it is open").attachment
    }

    /// Returns the kept outcomes of an open session.
    pub(crate) fn outcomes(&self, id: SessionId) -> Option<&Outcomes> {
        self.get(id).map(|session| &session.outcomes)
    }

    /// Changes the outcomes of an open session.
    #[inline]
    pub(crate) fn with_outcomes(&mut self, near: Near, change: impl FnOnce(&mut Outcomes)) {
        let session = self.open_mut(near);
        let bytes_before = session.outcomes.bytes();
        change(&mut session.outcomes);
        let bytes = session.outcomes.bytes();
        debug_assert_eq!(
            session.hasher.finish(),
            session.hasher(near.0).finish(),
            "an old hash of {}",
            near.0
        );
        let (new, old) = session.rehash();
        self.digest = self.digest.wrapping_sub(old).wrapping_add(new);
        assert!(self.outcome_bytes >= bytes_before, "the outcomes of {} were not counted", near.0);
        self.outcome_bytes = self.outcome_bytes - bytes_before + bytes;
    }

    /// Returns the address of an open session's client, shared.
    pub(crate) fn shared_address(&mut self, near: Near, who: &[Id]) -> Arc<str> {
        self.open_mut(near).shared_address(address_in(who))
    }

    /// Ends a session without ephemerals.
    pub(crate) fn close(&mut self, id: SessionId) {
        let session = self.map.remove(&id).expect("the caller has found the session");
        assert!(session.ephemerals.is_empty(), "ephemerals go before their session");
        assert_eq!(session.end_steps, 0, "what the end of {id} takes is miscounted");
        self.hosts.remove(&session);
        self.digest = self.digest.wrapping_sub(session.hash);
        assert!(self.outcome_bytes >= session.outcomes.bytes(), "the outcomes of {id} were not counted");
        self.outcome_bytes -= session.outcomes.bytes();
        let is_last = self.map.is_empty();
        assert!(!is_last || (self.digest, self.outcome_bytes) == (0, 0), "no session, and something of one");
    }

    /// Adds an ephemeral znode below this parent.
    pub(crate) fn add_ephemeral(&mut self, near: Near, parent: Number, path: Arc<str>, id: Number) {
        let session = self.open_mut(near);
        session.end_steps += end_steps(&path);
        session.add(parent, path, id);
    }

    /// Adds an ephemeral znode with a queue position. Returns the address of the session's client, shared.
    pub(crate) fn add_place(
        &mut self,
        near: Near,
        (parent, path, levels, id): (Number, &Arc<str>, u64, Number),
        who: &[Id],
    ) -> Arc<str> {
        let session = self.open_mut(near);
        session.end_steps += end_steps_at(levels, path);
        session.add(parent, path.clone(), id);
        session.shared_address(address_in(who))
    }

    /// Removes an ephemeral znode below this parent. Returns its path.
    pub(crate) fn remove_ephemeral(&mut self, near: Near, below: Below<'_>, id: Number) -> Arc<str> {
        self.remove_place(near, below, (id, levels(below.1) as u64))
    }

    /// Removes an ephemeral znode whose path has `levels` levels. Returns its path.
    pub(crate) fn remove_place(
        &mut self,
        near: Near,
        below: Below<'_>,
        (id, levels): (Number, u64),
    ) -> Arc<str> {
        let session = self.open_mut(near);
        let steps = end_steps_at(levels, below.1);
        assert!(session.end_steps >= steps, "what the end of {} takes is miscounted", near.0);
        session.end_steps -= steps;
        let place = session.find(below, id).expect("an ephemeral znode is registered with its session");
        let path = session.ephemerals.take(place).0.path;
        debug_assert_eq!(
            session.ephemerals.is_empty(),
            session.end_steps == 0,
            "an end takes steps for znodes"
        );
        path
    }

    /// Checks structure and digest, for [`crate::Machine::check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        self.map.check()?;
        self.hosts.check(self)?;
        let (mut digest, mut outcome_bytes) = (0u64, 0);
        for (id, session) in self.iter() {
            session.ephemerals.check()?;
            session.outcomes.check()?;
            outcome_bytes += session.outcomes.bytes();
            if session.end_steps != session.ephemerals().map(end_steps).sum::<u64>() {
                return Err(format!("what the end of {id} takes is miscounted"));
            }
            if session.longest_timeout_ms < session.timeout_ms {
                return Err(format!("{id} has a longer timeout than it ever had"));
            }
            digest = digest.wrapping_add(session.outcomes.add_to(session.hasher(id)).finish());
        }
        if outcome_bytes != self.outcome_bytes {
            return Err("the bytes of kept outcomes are miscounted".to_owned());
        }
        if digest == self.digest {
            Ok(())
        } else {
            Err("the digest of the sessions is not their sum".to_owned())
        }
    }
}

impl Machine {
    /// Returns the slot of the session if the session exists and this attachment is its newest.
    pub(crate) fn admit(
        &self,
        session: SessionId,
        attachment: Attachment,
    ) -> Result<(Slot, &Session), ErrorCode> {
        let place = self.sessions.find(session).ok_or(ErrorCode::SessionExpired)?;
        let open = self.sessions.map.at(place).1;
        if decides!("writer-is-attached", open.attachment == attachment) {
            Ok((place, open))
        } else {
            Err(ErrorCode::SessionMoved)
        }
    }

    pub(crate) fn create_session<S: EventSink + ?Sized>(
        &mut self,
        by: &Proposal,
        proof: Proof,
        timeout_ms: u32,
        sink: &mut S,
    ) -> Attached {
        let zxid = self.next_zxid();
        let session = session_id(by.origin.node, zxid);
        assert!(session.0 > 0, "the id of a session is a positive number");
        let attachment = Attachment(1);
        let opened = Session::new(proof, timeout_ms, attachment).opened_from(Host::among(&by.identities));
        self.sessions.open(session, opened);
        sink.session_opened(session, attachment, timeout_ms);
        Attached { session, attachment, timeout_ms }
    }

    pub(crate) fn attach<S: EventSink + ?Sized>(
        &mut self,
        session: SessionId,
        proof: Proof,
        from: Option<Attachment>,
        timeout_ms: u32,
        sink: &mut S,
    ) -> Result<Attached, ErrorCode> {
        let known = self
            .sessions
            .get(session)
            .filter(|open| decides!("session-secret-fits", open.proof.is_that_of(&proof)));
        let open = known.ok_or(ErrorCode::SessionExpired)?;
        if from.is_some_and(|from| decides!("session-moved-meanwhile", from != open.attachment)) {
            return Err(ErrorCode::SessionMoved);
        }
        let before = open.attachment;
        let attachment = self.sessions.attach(session, timeout_ms);
        assert!(before < attachment, "an older connection of {session} could go on");
        sink.session_attached(session, attachment, timeout_ms);
        Ok(Attached { session, attachment, timeout_ms })
    }

    /// Ends an open session. Deletes all its ephemerals under one zxid, in the order of their paths.
    pub(crate) fn end_session<S: EventSink + ?Sized>(
        &mut self,
        session: SessionId,
        end: SessionEnd,
        sink: &mut S,
    ) -> Response {
        let zxid = self.next_zxid();
        let open = self.sessions.get(session).expect("the session has been admitted");
        let mut paths: Vec<Arc<str>> = open.shared_ephemerals().map(|(path, _)| path.clone()).collect();
        paths.sort_unstable();
        debug_assert!(paths.windows(2).all(|two| two[0] < two[1]), "{session} has a znode twice");
        let mut gone: Vec<_> = paths.into_iter().map(|path| self.remove(zxid, &path)).collect();
        let is_its = |done: &Done| done.stat.ephemeral_owner == session;
        assert!(gone.iter().all(is_its), "the end of {session} takes another session's znode away");
        self.sessions.close(session);
        let why = Some(match end {
            SessionEnd::Closed => EndReason::SessionClosed,
            SessionEnd::Expired => EndReason::SessionExpired,
            SessionEnd::Ended => EndReason::SessionEnded,
        });
        let cause = Cause { session, why, grants_max: END_GRANTS_MAX, ..Cause::of_the_cluster(zxid) };
        self.publish(cause, &mut gone, sink);
        debug_assert!(
            steps::uncounted(|| gone.iter().all(|done| self.tree.get(done.path()).is_none())),
            "an ephemeral of {session} has outlived it"
        );
        sink.session_ended(session, end);
        Response::Empty
    }
}

/// Returns a new session id: unique because zxids are. The node's number is in front, as in ZooKeeper, and
/// shows operators the origin.
fn session_id(node: NodeId, zxid: Zxid) -> SessionId {
    let node = (node.0 & 0x7f) as i64;
    SessionId(node << 56 | zxid.0 & ((1 << 56) - 1))
}
