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

use super::super::Invariant;
use crate::history::client::ClientFact;
use crate::history::node::NodeFact;
use crate::history::{Fact, Lock};

/// Remainder of a timeout, in percent, on the fastest clock within the bound.
const LEFT_PERCENT: u32 = 95;
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
    has_bounded_clocks: bool,
    /// All clocks keep true time.
    has_true_clocks: bool,
    now: Nanos,
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
        let now = Nanos::default();
        SessionExpiry { rules, has_bounded_clocks, has_true_clocks, now, longest, places, known_by }
    }

    fn check(&mut self, event: Event) -> Result<(), String> {
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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::SessionOpened { session, timeout_ms, .. }
            | Fact::SessionAttached { session, timeout_ms, .. } => self.opened(*session, *timeout_ms),
            Fact::SessionEnded { session, end, .. } => {
                if *end == SessionEnd::Ended {
                    let timeout = millis(self.longest.get(session).copied().unwrap_or_default());
                    self.known_by.insert(*session, self.now + timeout);
                }
                self.check(Event::Ended { session: session.0, is_expired: *end == SessionEnd::Expired })
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

#[cfg(test)]
mod tests {
    use rowlock_proto::lock::Mode;
    use rowlock_state::command::Attachment;

    use super::super::super::{check_history, queued};
    use super::super::testing::{client_at, node_at};
    use super::*;
    use crate::history::Millis;

    const SESSION: SessionId = SessionId(1);

    fn opened() -> Fact {
        Fact::SessionOpened { session: SESSION, attachment: Attachment(1), timeout_ms: 1_000, at: Millis(0) }
    }

    fn leads(at_ms: u64) -> Fact {
        node_at(at_ms, 1, NodeFact::Leads { term: 3 })
    }

    fn expires(at_ms: u64) -> Fact {
        node_at(at_ms, 1, NodeFact::Expires { session: SESSION, term: 3, contact: Nanos::from_millis(at_ms) })
    }

    fn confirms(at_ms: u64, since: u64, touched: u64) -> Fact {
        let (since, touched) = (Nanos::from_millis(since), Nanos::from_millis(touched));
        node_at(at_ms, 1, NodeFact::Confirms { term: 3, since, touched, sessions: vec![SESSION] })
    }

    fn alive(at_ms: u64, for_ms: u32) -> Fact {
        client_at(at_ms, 1, ClientFact::Alive { session: SESSION, for_ms })
    }

    fn expired() -> Fact {
        Fact::SessionEnded { session: SESSION, end: SessionEnd::Expired, at: Millis(0) }
    }

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(SessionExpiry::new(true, false), facts)
    }

    fn without_bounds(facts: &[Fact]) -> Result<(), String> {
        check_history(SessionExpiry::new(false, false), facts)
    }

    #[test]
    fn an_expiry_before_the_timeout_is_caught() {
        assert!(check_facts(&[leads(100), opened(), expires(1_049)]).is_err());
        assert_eq!(check_facts(&[leads(100), opened(), expires(1_050), expired()]), Ok(()));
        assert!(check_facts(&[leads(0), opened(), leads(500), expires(1_400)]).is_err(), "elected again");
        assert_eq!(without_bounds(&[leads(100), opened(), expires(200)]), Ok(()));
        let (session, timeout_ms, grace_ms) = (SESSION, 1_000, Some(50));
        let grace = client_at(100, 1, ClientFact::Session { session, timeout_ms, grace_ms });
        assert_eq!(check_facts(&[leads(100), opened(), grace, expires(200)]), Ok(()));
    }

    #[test]
    fn an_early_expiry_after_a_confirmed_touch_is_caught() {
        let facts = |at_ms| [leads(100), opened(), confirms(450, 420, 400), expires(at_ms)];
        let exact = |facts: &[Fact]| check_history(SessionExpiry::new(true, true), facts);
        assert!(exact(&facts(1_399)).is_err());
        assert_eq!(exact(&facts(1_400)), Ok(()));
        assert!(check_facts(&facts(1_349)).is_err());
        assert_eq!(check_facts(&facts(1_350)), Ok(()), "clocks may be off");
    }

    #[test]
    fn an_expiry_by_a_leader_that_has_just_stood_still_is_caught() {
        let resumed =
            |at_ms, after_ms| node_at(at_ms, 1, NodeFact::Resumed { after: Duration::from_millis(after_ms) });
        assert!(check_facts(&[leads(100), opened(), resumed(5_000, 4_000), expires(5_100)]).is_err());
        assert_eq!(check_facts(&[leads(100), opened(), resumed(5_000, 4_000), expires(6_000)]), Ok(()));
        assert_eq!(check_facts(&[leads(100), opened(), resumed(5_000, 900), expires(5_100)]), Ok(()));
        let decided = [leads(100), opened(), expires(1_200), resumed(5_000, 3_500), expires(5_001)];
        assert_eq!(check_facts(&decided), Ok(()), "it had been decided before");
    }

    #[test]
    fn a_word_of_a_quorum_from_the_time_of_a_later_leader_is_caught() {
        let later = node_at(500, 2, NodeFact::Leads { term: 4 });
        let confirms = |since| confirms(900, since, 400);
        assert_eq!(check_facts(&[leads(100), confirms(800)]), Ok(()));
        assert_eq!(check_facts(&[leads(100), later.clone(), confirms(499)]), Ok(()), "it was so then");
        let found = check_facts(&[leads(100), later.clone(), confirms(501)]).unwrap_err();
        assert!(found.contains("after a later one was elected"), "{found}");
        let latest = node_at(800, 3, NodeFact::Leads { term: 5 });
        assert!(
            check_facts(&[leads(100), later.clone(), latest, confirms(501)]).is_err(),
            "or one behind it"
        );
        assert_eq!(without_bounds(&[leads(100), later, confirms(501)]), Ok(()));
    }

    #[test]
    fn a_leader_without_contact_that_confirms_or_expires_is_caught() {
        assert!(
            check_facts(&[leads(100), opened(), confirms(900, 399, 400)]).unwrap_err().contains("contact")
        );
        let expires = |contact| {
            let contact = Nanos::from_millis(contact);
            node_at(4_000, 1, NodeFact::Expires { session: SESSION, term: 3, contact })
        };
        assert_eq!(check_facts(&[leads(100), opened(), expires(1_900)]), Ok(()));
        assert!(check_facts(&[leads(100), opened(), expires(1_899)]).unwrap_err().contains("contact"));
    }

    #[test]
    fn an_assurance_without_a_leaders_touch_is_caught() {
        // The client sent the last answered keepalive at 600, or at 585 by the worst clock.
        let facts = |noted| [leads(100), opened(), confirms(noted, 550, 550), alive(900, 600)];
        assert_eq!(check_facts(&facts(585)), Ok(()));
        assert!(check_facts(&facts(584)).unwrap_err().contains("noted"));
        assert!(check_history(SessionExpiry::new(true, true), &facts(599)).is_err());
        assert_eq!(without_bounds(&facts(500)), Ok(()));
    }

    #[test]
    fn an_expiry_by_who_does_not_lead_is_caught() {
        assert!(check_facts(&[opened(), expires(5_000)]).is_err());
        let restarted = node_at(200, 1, NodeFact::Started);
        assert!(check_facts(&[leads(100), opened(), restarted, expires(5_000)]).is_err());
        assert!(check_facts(&[opened(), expired()]).unwrap_err().contains("a leader has decided"));
    }

    /// Seed 304499 of 30 s, all faults: a leader that had been cut off for 800 ms expired a session whose
    /// client had moved to the new leader's side meanwhile.
    #[test]
    fn a_former_leaders_decision_must_not_take_effect() {
        let later = node_at(500, 2, NodeFact::Leads { term: 4 });
        let facts = [leads(100), later, opened(), expires(1_000), expired()];
        assert_eq!(check_facts(&facts[..4]), Ok(()));
        assert!(check_facts(&facts).unwrap_err().contains("a leader has decided"));
    }

    #[test]
    fn a_belief_in_an_expired_session_or_its_lock_is_caught() {
        let place = queued(1, 7, Mode::Exclusive, None);
        let noted = confirms(4_060, 4_050, 4_050);
        let facts = [leads(0), opened(), place, noted, expires(5_000), alive(5_000, 0), expired()];
        assert_eq!(check_facts(&facts), Ok(()));
        assert!(check_facts(&[&facts[..], &[alive(5_001, 0)]].concat()).is_err());
        let (lock, token, mode) = (Lock(0), FencingToken(7), Mode::Exclusive);
        let holds = client_at(5_001, 1, ClientFact::Holds { lock, token, mode });
        assert!(check_facts(&[&facts[..], &[holds]].concat()).unwrap_err().contains("believes"));
    }

    #[test]
    fn a_late_belief_in_an_operator_ended_session_is_caught() {
        let ended = Fact::SessionEnded { session: SESSION, end: SessionEnd::Ended, at: Millis(0) };
        let at = |ms| node_at(ms, 1, NodeFact::Started);
        let start = [opened(), queued(1, 7, Mode::Exclusive, None), at(500), ended];
        let (lock, token, mode) = (Lock(0), FencingToken(7), Mode::Exclusive);
        let holds = ClientFact::Holds { lock, token, mode };
        for what in [holds, ClientFact::Alive { session: SESSION, for_ms: 0 }] {
            let believes = |ms| [client_at(ms, 1, what.clone())];
            assert_eq!(check_facts(&[&start[..], &believes(1_500)].concat()), Ok(()));
            let late = [&start[..], &believes(1_501)].concat();
            assert!(check_facts(&late).unwrap_err().contains("an operator has ended"));
            assert_eq!(without_bounds(&late), Ok(()));
        }
    }

    #[test]
    fn an_expiry_of_an_assured_session_is_caught() {
        let noted = confirms(900, 880, 870);
        let facts =
            |for_ms| [leads(0), opened(), noted.clone(), alive(900, for_ms), expires(1_820), expired()];
        assert_eq!(check_facts(&facts(900)), Ok(()), "until 1,755");
        assert!(check_facts(&facts(990)).unwrap_err().contains("assured"));
        assert_eq!(without_bounds(&facts(990)), Ok(()));
    }
}
