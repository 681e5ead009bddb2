//! no-lost-wakeup: once every fault has healed, a client with a grant in the log knows of the grant within a
//! bound, if the client still waits for this lock and for no other lock; and no queue position is granted a
//! lock without its client's knowledge.
//!
//! While faults go on, the calls of a session serve as a clock. The node answers a session's calls in order,
//! and answers in the same order the query for the grant (or the removal of an unwanted position), which the
//! client sends after a reconnect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_proto::{FencingToken, SessionId};
use rowlock_state::STATE_LOCK_MS;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Op};
use crate::history::{Book, Fact, Lock};

/// Moment in true time and in rounds of a session.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    at: Nanos,
    /// Completed rounds of the session.
    rounds: u64,
}

/// Position in a lock's queue.
struct Place {
    session: SessionId,
    queued: Nanos,
    granted: Option<Moment>,
    /// End of the last call that may have requested the position.
    unasked: Moment,
    /// The client knows of the grant.
    is_known: bool,
}

/// Call for a lock, with its start.
type Asked = (ClientId, SessionId, Lock, Nanos);

/// Calls of a session through the log, each of which began after the answer to the previous one.
#[derive(Default)]
struct Rounds {
    done: u64,
    current: Option<CallId>,
}

pub struct GrantInTime {
    bound: Duration,
    now: Nanos,
    healed: Option<Nanos>,
    places: BTreeMap<(Lock, FencingToken), Place>,
    asked: BTreeMap<CallId, Asked>,
    rounds: BTreeMap<SessionId, Rounds>,
    /// Sessions by the call of their current round.
    current: BTreeMap<CallId, SessionId>,
    /// Sessions without grant notifications: plain clients poll the queue.
    plain: BTreeSet<SessionId>,
}

/// Rounds after which a waiting client knows of its grant: the first may begin before the grant, the second
/// before the reconnect, and simultaneous notifications arrive in any order.
const ROUNDS: u64 = 4;
/// Rounds and time after which no position is granted without a request for it: the client may have to repeat
/// a removal.
const ROUNDS_OF_GHOSTS: u64 = 8;
const GHOSTS: Duration = Duration::from_secs(5);

/// Reports whether the position may belong to this call.
fn may_have_asked((_, session, of, since): &Asked, lock: Lock, place: &Place) -> bool {
    (*session, *of) == (place.session, lock) && *since <= place.queued
}

impl GrantInTime {
    /// Demands that, once every fault has healed, a client knows of its grant within `bound`, and that no
    /// position stays granted for longer than `bound` without a request.
    pub fn within(bound: Duration) -> Self {
        GrantInTime {
            bound,
            now: Nanos(0),
            healed: None,
            places: BTreeMap::new(),
            asked: BTreeMap::new(),
            rounds: BTreeMap::new(),
            current: BTreeMap::new(),
            plain: BTreeSet::new(),
        }
    }

    /// Returns an error for a client that waits although all its locks are granted and `is_late` accepts each
    /// grant.
    fn waits_despite_grant(&self, is_late: impl Fn(&Place, Nanos) -> bool) -> Result<(), String> {
        for (client, session, lock, since) in self.asked.values() {
            let mut own = self.unknown_to(*session).peekable();
            if own.peek().is_none() || !self.unknown_to(*session).any(|((of, _), _)| of == lock) {
                continue;
            }
            // A call for several locks that has given up removes its positions one by one.
            let asked_together = self.asked.values().filter(|(_, by, _, at)| (by, at) == (session, since));
            if asked_together.into_iter().any(|asked| !self.has_a_place(asked)) {
                continue;
            }
            // A call for several locks returns with the last grant, so one missing grant excuses the other
            // locks.
            if own.all(|(_, place)| is_late(place, *since)) {
                return Err(format!(
                    "client {} waits for {lock:?} since {since} at {}, which the log has granted to session {session}",
                    client.0, self.now
                ));
            }
        }
        Ok(())
    }

    fn has_a_place(&self, asked: &Asked) -> bool {
        self.places.iter().any(|((lock, _), place)| may_have_asked(asked, *lock, place))
    }

    /// Returns an error for a granted position whose client neither knows the grant nor requests the lock:
    /// such a position blocks all later ones. `is_late` takes the position and the later of its grant and its
    /// last request.
    fn granted_without_request(&self, is_late: impl Fn(&Place, Moment) -> bool) -> Result<(), String> {
        for ((lock, token), place) in self.places.iter().filter(|(_, place)| !place.is_known) {
            let Some(granted) = place.granted.filter(|granted| is_late(place, place.unasked.max(*granted)))
            else {
                continue;
            };
            // A call that began after the position existed requests another position. Earlier positions are
            // granted too.
            let asks = self.asked.values().filter(|asked| may_have_asked(asked, *lock, place)).count();
            let of_session = self.unknown_to(place.session);
            let places = of_session.filter(|((of, other), _)| of == lock && other <= token).count();
            if places > asks {
                return Err(format!(
                    "{token} of {lock:?} was granted to session {} at {}, which does not ask for it at {}",
                    place.session, granted.at, self.now
                ));
            }
        }
        Ok(())
    }

    fn unknown_to(&self, session: SessionId) -> impl Iterator<Item = (&(Lock, FencingToken), &Place)> {
        self.places.iter().filter(move |(_, place)| place.session == session && !place.is_known)
    }

    fn overdue(&self, healed: Nanos) -> Result<(), String> {
        let is_late = |since: Nanos| self.now > since.max(healed) + self.bound;
        self.waits_despite_grant(|place, since| {
            place.granted.is_some_and(|granted| is_late(granted.at.max(since)))
        })?;
        self.granted_without_request(|_, since| is_late(since.at))
    }

    fn moment(&self, session: SessionId) -> Moment {
        let rounds = self.rounds.get(&session).map_or(0, |rounds| rounds.done);
        Moment { at: self.now, rounds }
    }

    /// Counts a completed round of a session.
    fn round(&mut self, session: SessionId) -> Result<(), String> {
        let Some(rounds) = self.rounds.get_mut(&session) else { return Ok(()) };
        (rounds.done, rounds.current) = (rounds.done + 1, None);
        let done = rounds.done;
        let is_its = |place: &Place| place.session == session;
        self.waits_despite_grant(|place, _| {
            is_its(place) && place.granted.is_some_and(|granted| done >= granted.rounds + ROUNDS)
        })?;
        self.granted_without_request(|place, since| {
            is_its(place) && done >= since.rounds + ROUNDS_OF_GHOSTS && self.now > since.at + GHOSTS
        })
    }

    /// Ends those of `calls` that wait for a lock.
    fn ended(&mut self, calls: &[CallId]) {
        for call in calls {
            let Some(asked) = self.asked.remove(call) else { continue };
            let now = self.moment(asked.1);
            let own =
                self.places.iter_mut().filter(|((lock, _), place)| may_have_asked(&asked, *lock, place));
            own.for_each(|(_, place)| place.unasked = now);
        }
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Result<(), String> {
        match what {
            ClientFact::Invoked { call, session, op } => {
                if let Op::Acquire { lock, .. } = &**op {
                    self.asked.insert(*call, (client, *session, *lock, self.now));
                    return Ok(());
                }
                let rounds = self.rounds.entry(*session).or_default();
                if rounds.current.is_none() && goes_through_the_log(op) {
                    rounds.current = Some(*call);
                    self.current.insert(*call, *session);
                }
            }
            ClientFact::Returned { call, result } => {
                if let (Some((_, _, lock, _)), Ok(Answer::Acquired(token))) = (self.asked.get(call), result) {
                    self.known(*lock, *token);
                }
                self.ended(&[*call]);
                match self.current.remove(call) {
                    Some(session) if result.is_ok() => return self.round(session),
                    Some(session) => self.rounds.entry(session).or_default().current = None,
                    None => {}
                }
            }
            ClientFact::Holds { lock, token, .. } => self.known(*lock, *token),
            ClientFact::Plain { session } => {
                self.plain.insert(*session);
            }
            ClientFact::Ended => {
                let own = self.asked.iter().filter(|(_, (who, ..))| *who == client);
                self.ended(&own.map(|(call, _)| *call).collect::<Vec<_>>());
            }
            _ => {}
        }
        Ok(())
    }

    fn known(&mut self, lock: Lock, token: FencingToken) {
        if let Some(place) = self.places.get_mut(&(lock, token)) {
            place.is_known = true;
        }
    }
}

impl Invariant for GrantInTime {
    fn name(&self) -> &'static str {
        "no-lost-wakeup"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::Queued { lock, token, session, .. } if !self.plain.contains(session) => {
                let (session, queued, unasked) = (*session, self.now, self.moment(*session));
                let place = Place { session, queued, granted: None, unasked, is_known: false };
                self.places.insert((*lock, *token), place);
            }
            Fact::Entitled { lock, token, .. } => {
                let session = self.places.get(&(*lock, *token)).map(|place| place.session);
                let granted = session.map(|session| self.moment(session));
                if let Some(place) = self.places.get_mut(&(*lock, *token)) {
                    place.granted = granted;
                }
            }
            // The program may be dead: its state lock stays.
            Fact::SessionAttached { session, timeout_ms: STATE_LOCK_MS, .. } => {
                self.places.retain(|_, place| place.session != *session);
            }
            Fact::Left { lock, token, .. } => {
                self.places.remove(&(*lock, *token));
            }
            Fact::Client { client, what, .. } => return self.client(*client, what),
            Fact::Healed { at } => self.healed = Some(*at),
            Fact::Passed { .. } => {
                if let Some(healed) = self.healed {
                    return self.overdue(healed);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reports whether the answer to `op` implies that the node has applied the log up to the call. A node
/// answers other reads from its own state, perhaps before the node has applied a grant.
fn goes_through_the_log(op: &Op) -> bool {
    !matches!(op, Op::Read { synced: false, .. })
}
