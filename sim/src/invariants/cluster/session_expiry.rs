//! session-expiry: every run is a behavior of the model in `sim/model`, whose rules this checker applies:
//! which leader expires a session and when, which leader confirms a session, and how long clients rely on a
//! session.
//!
//! A client whose session an operator has ended believes in the session for at most its timeout.
//!
//! A leader that stalled for longer than a second restores every session's full timeout.
//!
//! Times are true times. With clock rates at the documented bound, a timeout ends a twentieth earlier, and an
//! interval measured by a client may have begun a twentieth earlier. Sessions with a disconnect grace may end
//! earlier after their connection is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use rowlock_model::rules::{Bounds, Event, RuleChecker};
use rowlock_proto::{FencingToken, NodeId, SessionId};
use rowlock_state::outcome::SessionEnd;
use rowlock_world::time::Nanos;

use super::super::{Invariant, ModelEvents};
use crate::history::client::ClientFact;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact, Lock};

/// Remainder of a timeout, in percent, on the fastest clock within the bound.
pub(super) const LEFT_PERCENT: u32 = 95;
/// Part of a timeout, in percent, for which a client believes in its session after sending the last answered
/// keepalive.
const BELIEVES_PERCENT: u32 = 90;
/// Stall that a leader notices, also by a slow clock.
const STOOD_STILL: Duration = Duration::from_millis(1_060);
/// Oldest contact to a quorum with which a leader still expires sessions: two seconds, by a slow clock
/// (`coordinator/src/node/wiring.rs`).
const CONTACT_MAX: Duration = Duration::from_millis(2_100);

pub struct SessionExpiry {
    rules: RuleChecker,
    events: ModelEvents,
    has_bounded_clocks: bool,
    /// All clocks keep true time.
    has_true_clocks: bool,
    now: Nanos,
    /// Term of the last entry that a node has applied: of the entry behind the facts of the log.
    term: Option<u64>,
    /// Longest timeout of each session, in milliseconds.
    longest: BTreeMap<SessionId, u32>,
    /// Session of each queue position.
    places: BTreeMap<(Lock, FencingToken), SessionId>,
    /// Time by which the client of a session knows that an operator has ended the session.
    known_by: BTreeMap<SessionId, Nanos>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

impl SessionExpiry {
    /// Creates the checker. `has_bounded_clocks`: no clock is faster than the bound. `has_true_clocks`: every
    /// clock keeps true time.
    pub fn new(has_bounded_clocks: bool, has_true_clocks: bool) -> Self {
        let percent = if has_true_clocks { 100 } else { LEFT_PERCENT };
        let timeout_percent = has_bounded_clocks.then_some(percent.into());
        let rules = RuleChecker::new(Bounds { timeout_percent, contact: nanos(CONTACT_MAX) });
        let (longest, places, known_by) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (events, now) = (ModelEvents::default(), Nanos::default());
        SessionExpiry {
            rules,
            events,
            has_bounded_clocks,
            has_true_clocks,
            now,
            term: None,
            longest,
            places,
            known_by,
        }
    }

    fn check(&mut self, event: Event) -> Result<(), String> {
        self.events[event.kind()] += 1;
        self.rules
            .observe(self.now.0, event)
            .map_err(|broken| format!("{broken}: at {}, judged by {}, {event:?}", self.now, Nanos(broken.by)))
    }

    fn opened(&mut self, session: SessionId, timeout_ms: u32) -> Result<(), String> {
        let longest = self.longest.entry(session).or_default();
        *longest = timeout_ms.max(*longest);
        self.check(Event::Opened { session: session.0, timeout: nanos(millis(timeout_ms)) })
    }

    fn node(&mut self, node: NodeId, what: &NodeFact) -> Result<(), String> {
        let node = node.0;
        match what {
            NodeFact::Started | NodeFact::Ended { .. } => self.check(Event::Stopped { node }),
            NodeFact::Leads { term } => self.check(Event::Leads { node, term: *term }),
            NodeFact::Resumed { after } if *after > STOOD_STILL => self.check(Event::Resumed { node }),
            NodeFact::Confirms { term, since, touched, sessions } => {
                let (since, touched, touched_by) = (since.0, touched.0, self.now.0);
                self.check(Event::Contact { node, term: *term, since })?;
                let confirms = |it: &SessionId| Event::Confirms { session: it.0, touched, touched_by, since };
                sessions.iter().map(confirms).try_for_each(|event| self.check(event))
            }
            NodeFact::Applied { entry, .. } => {
                self.term = Some(entry.term);
                Ok(())
            }
            NodeFact::Expires { session, term, contact } => {
                let (term, session, contact) = (*term, session.0, contact.0);
                self.check(Event::Expires { node, term, session, contact })
            }
            _ => Ok(()),
        }
    }

    fn client(&mut self, what: &ClientFact) -> Result<(), String> {
        match what {
            ClientFact::Session { session, grace_ms: Some(_), .. } => {
                self.check(Event::Graced { session: session.0 })
            }
            ClientFact::Alive { session, for_ms } => {
                self.knows_of_its_end(*session)?;
                self.assured(*session, millis(*for_ms))
            }
            ClientFact::Holds { lock, token, .. } => match self.places.get(&(*lock, *token)).copied() {
                Some(session) => {
                    self.knows_of_its_end(session)?;
                    self.check(Event::Believes { session: session.0 })
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Checks that the client of a session, or of a lock in the session, may still ignore the end by an
    /// operator.
    fn knows_of_its_end(&self, session: SessionId) -> Result<(), String> {
        match self.known_by.get(&session).filter(|by| self.now > **by && self.has_bounded_clocks) {
            Some(by) => Err(format!(
                "a client believes at {} in session {session}, which an operator has ended: until {by} it may",
                self.now
            )),
            None => Ok(()),
        }
    }

    /// Derives two bounds from the client's remaining time `left`: the end of its assurance, and the time at
    /// which the client sent the last answered keepalive.
    fn assured(&mut self, session: SessionId, left: Duration) -> Result<(), String> {
        let lasts = millis(self.longest.get(&session).copied().unwrap_or_default()) * BELIEVES_PERCENT / 100;
        let measured = lasts.saturating_sub(left);
        let (until, since_sent) = match self.has_true_clocks {
            true => (self.now + left, measured),
            false => (self.now + left * LEFT_PERCENT / 100, measured + measured / 20),
        };
        let sent = self.now.0.saturating_sub(nanos(since_sent));
        self.check(Event::Assured { session: session.0, sent, until: until.0 })
    }
}

impl Invariant for SessionExpiry {
    fn name(&self) -> &'static str {
        "session-expiry"
    }

    fn model_events(&self) -> ModelEvents {
        self.events
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::SessionOpened { session, timeout_ms, .. }
            | Fact::SessionAttached { session, timeout_ms, .. } => self.opened(*session, *timeout_ms),
            Fact::SessionEnded { session, end, .. } => {
                if *end == SessionEnd::Ended {
                    let timeout = millis(self.longest.get(session).copied().unwrap_or_default());
                    self.known_by.insert(*session, self.now + timeout);
                }
                let (session, is_expired, term) = (session.0, *end == SessionEnd::Expired, self.term);
                self.check(Event::Ended { session, is_expired, term })
            }
            Fact::Queued { lock, token, session, .. } => {
                self.places.insert((*lock, *token), *session);
                Ok(())
            }
            Fact::Node { node, what, .. } => self.node(*node, what),
            Fact::Client { what, .. } => self.client(what),
            _ => Ok(()),
        }
    }
}
