//! Positions in queues, and the calls that ask for them: who waits, although the log has granted the lock.

use std::collections::BTreeMap;

use rowlock_proto::{FencingToken, SessionId};
use rowlock_world::time::Nanos;

use super::lateness::Debt;
use crate::history::Lock;
use crate::history::client::CallId;

/// Position in a lock's queue whose client does not know of a grant.
struct Place {
    session: SessionId,
    queued: Nanos,
    granted: Option<Nanos>,
    /// End of the last call that may have requested the position.
    unasked: Nanos,
}

/// Call for a lock. Calls of one session with one beginning are a single request for several locks.
struct Asked {
    session: SessionId,
    lock: Lock,
    since: Nanos,
}

impl Asked {
    fn may_want(&self, lock: Lock, place: &Place) -> bool {
        (self.session, self.lock) == (place.session, lock) && self.since <= place.queued
    }
}

/// A granted lock of which the client has still to hear, or which it has still to leave.
pub(super) struct Due {
    /// Beginning of the request by HTTP that waits for the grant.
    pub(super) request: Option<Nanos>,
    pub(super) debt: Debt,
    pub(super) session: SessionId,
    pub(super) since: Nanos,
    pub(super) what: (Lock, FencingToken),
}

#[derive(Default)]
pub(super) struct Grants {
    places: BTreeMap<(Lock, FencingToken), Place>,
    asked: BTreeMap<CallId, Asked>,
    /// Beginning of the HTTP request under way for locks of a lease.
    requests: BTreeMap<SessionId, (CallId, Nanos)>,
}

impl Grants {
    pub(super) fn ask(&mut self, call: CallId, (session, lock): (SessionId, Lock), since: Nanos) {
        self.asked.insert(call, Asked { session, lock, since });
    }

    pub(super) fn request(&mut self, call: CallId, session: SessionId, since: Nanos) {
        self.requests.insert(session, (call, since));
    }

    /// Ends a call or a request.
    pub(super) fn end(&mut self, call: CallId, now: Nanos) {
        self.requests.retain(|_, (request, _)| *request != call);
        let Some(asked) = self.asked.remove(&call) else { return };
        let own = self.places.iter_mut().filter(|((lock, _), place)| asked.may_want(*lock, place));
        own.for_each(|(_, place)| place.unasked = now);
    }

    pub(super) fn queue(&mut self, key: (Lock, FencingToken), session: SessionId, now: Nanos) {
        self.places.insert(key, Place { session, queued: now, granted: None, unasked: now });
    }

    pub(super) fn grant(&mut self, key: (Lock, FencingToken), now: Nanos) {
        if let Some(place) = self.places.get_mut(&key) {
            place.granted = Some(now);
        }
    }

    /// Records that the client knows of all grants of the request. Returns what was due.
    pub(super) fn tell(&mut self, key: (Lock, FencingToken), is_lease: bool) -> Option<Due> {
        let due = self.due(key, is_lease);
        let place = self.places.remove(&key)?;
        let wanting = self.asked.values().filter(|asked| asked.may_want(key.0, &place));
        let requests: Vec<Nanos> = wanting.map(|asked| asked.since).collect();
        // The positions of one request have one token, unless a repeated request found only some of them.
        let parts = self.asked.values().filter(|part| requests.contains(&part.since));
        self.places.retain(|(lock, token), other| {
            let is_part = parts.clone().any(|part| part.may_want(*lock, other)) && other.granted.is_some();
            other.session != place.session || (*token != key.1 && !is_part)
        });
        due
    }

    /// Forgets a position that has left its queue.
    pub(super) fn forget(&mut self, key: (Lock, FencingToken)) {
        self.places.remove(&key);
    }

    pub(super) fn forget_session(&mut self, session: SessionId) {
        self.places.retain(|_, place| place.session != session);
        self.asked.retain(|_, asked| asked.session != session);
        self.requests.remove(&session);
    }

    pub(super) fn places_of(&self, session: SessionId) -> impl Iterator<Item = (Lock, FencingToken)> {
        self.places.iter().filter(move |(_, place)| place.session == session).map(|(key, _)| *key)
    }

    /// Returns what is due for the position, if the log has granted the lock.
    pub(super) fn due(&self, key: (Lock, FencingToken), is_lease: bool) -> Option<Due> {
        let place = self.places.get(&key)?;
        let (granted, session) = (place.granted?, place.session);
        let wanting = self.asked.values().filter(|asked| asked.may_want(key.0, place));
        if wanting.clone().next().is_none() {
            let since = granted.max(place.unasked);
            let (debt, request) = (Debt::Removal, None);
            return (!is_lease).then_some(Due { request, debt, session, since, what: key });
        }
        // A request for several locks ends with the last grant, or gives up one position after another. Any
        // of the calls may have the position.
        let mut since = granted;
        for asked in wanting {
            let together = self.asked.values().filter(|it| (it.session, it.since) == (session, asked.since));
            since = since.max(asked.since);
            for part in together {
                since = since.max(self.places.get(&(part.lock, key.1))?.granted?);
            }
        }
        let request = if is_lease { Some(self.requests.get(&session)?.1) } else { None };
        Some(Due {
            request,
            debt: Debt::Grant,
            session,
            since: since.max(request.unwrap_or(since)),
            what: key,
        })
    }

    /// Returns the positions whose clients have still to learn of a grant, or to leave.
    pub(super) fn all_due(&self, is_lease: impl Fn(SessionId) -> bool) -> impl Iterator<Item = Due> {
        self.places.iter().filter_map(move |(key, place)| self.due(*key, is_lease(place.session)))
    }
}
