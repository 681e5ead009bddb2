//! The sessions of all clients, wherever they are connected, and the commands that open, move and end them.
//!
//! Touches (signs of life) are not here: they never enter the log. Only the leader keeps them and proposes
//! expiry.

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
use crate::guesses::Guesses;
use crate::locks::{Cause, address_in};
use crate::machine::Machine;
use crate::ops::Done;
use crate::outcome::{Attached, EventSink, SessionEnd, Why};
use crate::proof::Proof;
use crate::shared_map::{SharedMap, Slot};
use crate::steps;
pub use hosts::{Host, LASTING_MS, Opened};

#[derive(Clone, Debug)]
pub struct Session {
    /// Proof of the password that the client shows when it returns.
    pub proof: Proof,
    /// Without a sign of life for so long, the leader expires it.
    pub timeout_ms: u32,
    /// The longest timeout that it has had.
    longest_timeout_ms: u32,
    /// How often it has been attached to a connection.
    pub attachment: Attachment,
    /// Its ephemeral znodes by their spots.
    ///
    /// Invariant: exactly the znodes of the tree whose `ephemeral_owner` it is.
    ephemerals: Spots,
    /// Where the newest of them was put: a guess.
    newest: Slot,
    /// Steps that its end takes for these ([`crate::cost`]). In no snapshot and no digest.
    end_steps: u64,
    /// That its client had when it last asked for a lock: shared by its places in queues.
    address: Option<Arc<str>>,
    /// Where it was opened from.
    host: Host,
    /// Outcomes of writes that its client may send again.
    pub(crate) outcomes: Outcomes,
    /// The part of its hash that does not depend on outcomes.
    hasher: Hasher,
    /// Its whole hash, as it was last counted.
    hash: u64,
}

/// A session, and where among all of them it may be: a guess.
pub(crate) type Near = (SessionId, Slot);

/// Where an ephemeral znode is: its session orders its znodes by their parents' numbers, and only those below
/// one parent by their paths, so that a search compares paths only there.
///
/// Invariant: the numbers are this node's alone. So anything that shows an order sorts by path first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    parent: Number,
    path: Arc<str>,
}

/// A session's ephemeral znodes.
pub(crate) type Spots = SharedMap<Spot, Number>;

/// Below which parent a znode is, and its path.
pub(crate) type Below<'a> = (Number, &'a str);

/// What is before, at or behind a spot.
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

    /// The longest timeout that it has had: a client may count with any of those.
    pub fn longest_timeout_ms(&self) -> u32 {
        self.longest_timeout_ms
    }

    /// Bytes of the outcomes that it keeps.
    pub fn outcome_bytes(&self) -> usize {
        self.outcomes.bytes()
    }

    /// Paths of its ephemeral znodes, in no order that another node would have, too.
    pub fn ephemerals(&self) -> impl Iterator<Item = &str> {
        self.ephemerals.iter().map(|(spot, _)| &*spot.path)
    }

    /// Returns the ephemeral znodes in the order of their paths.
    pub fn ephemerals_in_order(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = self.ephemerals().collect();
        paths.sort_unstable();
        paths
    }

    /// All that is kept of them: where they are, and their numbers in the tree.
    pub(crate) fn spots(&self) -> impl Iterator<Item = (Below<'_>, Number)> {
        self.ephemerals.iter().map(|(spot, id)| ((spot.parent, &*spot.path), *id))
    }

    /// The paths, shared, with the znodes' numbers in the tree.
    pub(crate) fn shared_ephemerals(&self) -> impl Iterator<Item = (&Arc<str>, Number)> {
        self.ephemerals.iter().map(|(spot, id)| (&spot.path, *id))
    }

    /// Iterates over the ephemeral znodes below one parent, by path, from the given one on.
    pub(crate) fn ephemerals_below(&self, from: Below<'_>) -> impl Iterator<Item = (&Arc<str>, Number)> {
        let alike = self.ephemerals.starting_by(order(from));
        alike.take_while(move |(spot, _)| spot.parent == from.0).map(|(spot, id)| (&spot.path, *id))
    }

    /// How many ephemeral znodes it has.
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.len()
    }

    /// Returns the address of its client, which all its places share.
    fn shared_address(&mut self, address: &str) -> Arc<str> {
        match &self.address {
            Some(known) if **known == *address => known.clone(),
            _ => self.address.insert(address.into()).clone(),
        }
    }

    /// Returns the steps that its end takes for its znodes.
    pub(crate) fn end_steps(&self) -> u64 {
        self.end_steps
    }

    fn add(&mut self, parent: Number, path: Arc<str>, id: Number) {
        assert_ne!(parent, id, "{path} is below itself");
        let place = self.ephemerals.find_by(order((parent, &path))).expect_err("a znode is created once");
        self.newest = self.ephemerals.put(place, Spot { parent, path }, id);
    }

    /// Where one of its znodes is among them.
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

    /// Recomputes its hash; returns the new and the old one.
    fn rehash(&mut self) -> (u64, u64) {
        debug_assert!(self.timeout_ms <= self.longest_timeout_ms, "a timeout is longer than the longest one");
        let new = self.outcomes.add_to(self.hasher).finish();
        (new, std::mem::replace(&mut self.hash, new))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    map: SharedMap<SessionId, Session>,
    guesses: Guesses,
    hosts: hosts::Hosts,
    /// Sum of the sessions' hashes.
    digest: u64,
    /// Bytes of the outcomes that they keep.
    outcome_bytes: usize,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.map.get(&id)
    }

    /// The same, which is sooner found if it is where it was.
    pub(crate) fn get_near(&self, (id, guess): Near) -> Option<&Session> {
        self.map.find_near(&id, guess).ok().map(|place| self.map.at(place).1)
    }

    /// Where it is among all of them.
    fn find(&self, id: SessionId) -> Option<Slot> {
        let hash = Hasher::new(0).int(id.0).finish();
        let is_it = |raw| self.map.get_at(Slot::from_raw(raw)).is_some_and(|(known, _)| *known == id);
        if let Some(raw) = self.guesses.find(hash, is_it) {
            steps::take(1);
            return Some(Slot::from_raw(raw));
        }
        let place = self.map.find(&id).ok()?;
        self.guesses.note(hash, place.raw());
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

    /// Bytes of the outcomes that all of them keep.
    pub(crate) fn outcome_bytes(&self) -> usize {
        self.outcome_bytes
    }

    /// Opens a session whose id must be new.
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
        self.guesses.fit(self.map.len());
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

    /// The outcomes that an open session keeps.
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

    /// Ends a session. Its ephemerals must be gone.
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

    /// A znode of this session has come below that parent.
    pub(crate) fn add_ephemeral(&mut self, near: Near, parent: Number, path: Arc<str>, id: Number) {
        let session = self.open_mut(near);
        session.end_steps += end_steps(&path);
        session.add(parent, path, id);
    }

    /// The same for a place in a queue. Returns the address of the session's client, shared.
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

    /// A znode of this session has gone from below that parent. Gives its path.
    pub(crate) fn remove_ephemeral(&mut self, near: Near, below: Below<'_>, id: Number) -> Arc<str> {
        self.remove_place(near, below, (id, levels(below.1) as u64))
    }

    /// The same for one whose path has `levels` levels.
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

    /// Structure and digest, for [`crate::Machine::check`].
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
    /// Whether the session exists and this is its newest attachment. Gives where it is.
    pub(crate) fn admit(
        &self,
        session: SessionId,
        attachment: Attachment,
    ) -> Result<(Slot, &Session), ErrorCode> {
        let place = self.sessions.find(session).ok_or(ErrorCode::SessionExpired)?;
        let open = self.sessions.map.at(place).1;
        if open.attachment == attachment { Ok((place, open)) } else { Err(ErrorCode::SessionMoved) }
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
        let known = self.sessions.get(session).filter(|open| open.proof.is_that_of(&proof));
        let open = known.ok_or(ErrorCode::SessionExpired)?;
        if from.is_some_and(|from| from != open.attachment) {
            return Err(ErrorCode::SessionMoved);
        }
        let before = open.attachment;
        let attachment = self.sessions.attach(session, timeout_ms);
        assert!(before < attachment, "an older connection of {session} could go on");
        sink.session_attached(session, attachment, timeout_ms);
        Ok(Attached { session, attachment, timeout_ms })
    }

    /// Ends an open session: all its ephemerals go under one zxid, in the order of their paths.
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
            SessionEnd::Closed => Why::SessionClosed,
            SessionEnd::Expired => Why::SessionExpired,
            SessionEnd::Ended => Why::SessionEnded,
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

/// Unique, because zxids are; the node's number in front as in ZooKeeper, where it tells people the origin.
fn session_id(node: NodeId, zxid: Zxid) -> SessionId {
    let node = (node.0 & 0x7f) as i64;
    SessionId(node << 56 | zxid.0 & ((1 << 56) - 1))
}
