//! The open sessions of the state, with totals over all of them.

use std::sync::Arc;

use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_proto::path::levels;

use super::hosts::Hosts;
use super::session::{Below, Host, Near, Session};
use crate::arena::Number;
use crate::command::Attachment;
use crate::digest::Hasher;
use crate::guesses::LookupHints;
use crate::locks::address_in;
use crate::outcome::Outcomes;
use crate::shared_map::{SharedMap, Slot};
use crate::steps::{self, end_steps, end_steps_at};

#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    pub(super) map: SharedMap<SessionId, Session>,
    hints: LookupHints,
    pub(super) hosts: Hosts,
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
    pub(super) fn find(&self, id: SessionId) -> Option<Slot> {
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
        self.hosts.check(self.map.iter().map(|(_, session)| session))?;
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

    /// Raises the longest timeout of an open session. For snapshots.
    pub(crate) fn had_timeout(&mut self, id: SessionId, timeout_ms: u32) {
        self.change(id, |session| session.longest_timeout_ms = session.longest_timeout_ms.max(timeout_ms));
    }

    /// Sets the host of an open session. For snapshots.
    pub(crate) fn was_opened_from(&mut self, id: SessionId, host: Host) {
        self.change(id, |session| session.host = host);
    }

    /// Changes counted properties of an open session.
    fn change(&mut self, id: SessionId, change: impl FnOnce(&mut Session)) {
        let session = self.map.get_mut(&id).expect("the caller has found the session");
        self.hosts.remove(session);
        change(session);
        self.hosts.add(session);
        assert!(session.timeout_ms <= session.longest_timeout_ms, "{id} has had its timeout");
        session.hasher = session.hasher(id);
        let (new, old) = session.rehash();
        self.digest = self.digest.wrapping_sub(old).wrapping_add(new);
    }
}
