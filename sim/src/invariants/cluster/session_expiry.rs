//! session-expiry: only a leader expires a session, and not before its timeout has passed since it was
//! opened, moved to another connection, or that leader started its timers. No leader confirms a session by a
//! quorum's answer from a time when another node led in a later term. No client believes in a session that
//! has expired, or has been assured of it for longer than it lasted.
//!
//! A leader that stood still for longer than a second gives every session its full timeout again.
//!
//! Times are true ones. Clocks whose rates are off by the documented bound make a timeout end a twentieth
//! earlier. Sessions with a disconnect grace may end earlier when their connection is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_state::outcome::SessionEnd;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::Fact;
use crate::history::client::{ClientFact, ClientId};
use crate::history::node::NodeFact;

/// What is left of a timeout, in percent, on a clock that is as fast as the bound allows.
const LEFT_PERCENT: u32 = 95;
/// The part of a timeout that its client gives up, in percent: it believes until the rest has passed since it
/// sent the last heartbeat that was answered.
const MARGIN_PERCENT: u32 = 10;
/// A leader that stalled for this long notices, also by a slow clock.
const STOOD_STILL: Duration = Duration::from_millis(1_060);

struct Session {
    timeout_ms: u32,
    /// Its timer cannot have been started before.
    since: Nanos,
}

#[derive(Default)]
pub struct SessionExpiry {
    /// No clock is faster than the bound.
    has_bounded_clocks: bool,
    /// No clock is off at all.
    has_true_clocks: bool,
    now: Nanos,
    sessions: BTreeMap<SessionId, Session>,
    with_grace: BTreeSet<SessionId>,
    /// Since when each node leads which term. Only of its process' life.
    leads: BTreeMap<NodeId, (u64, Nanos)>,
    /// Who was first seen leading in each term, and since when.
    elected: BTreeMap<u64, (NodeId, Nanos)>,
    /// Which leader has decided so, in which term.
    decided: BTreeMap<SessionId, (NodeId, u64)>,
    expired: BTreeSet<SessionId>,
    /// Until when its client was last assured of each session, at least.
    assured: BTreeMap<SessionId, Nanos>,
}

impl SessionExpiry {
    /// For a run with such clocks.
    pub fn new(has_bounded_clocks: bool) -> Self {
        SessionExpiry { has_bounded_clocks, ..Self::default() }
    }

    /// The same, and whether no clock is off at all.
    #[must_use]
    pub fn with_true_clocks(self, has_true_clocks: bool) -> Self {
        SessionExpiry { has_true_clocks, ..self }
    }

    fn left_percent(&self) -> u32 {
        if self.has_true_clocks { 100 } else { LEFT_PERCENT }
    }

    fn node(&mut self, node: NodeId, what: &NodeFact) -> Result<(), String> {
        match what {
            NodeFact::Started | NodeFact::Ended { .. } => {
                self.leads.remove(&node);
            }
            NodeFact::Leads { term } => {
                self.leads.insert(node, (*term, self.now));
                self.elected.entry(*term).or_insert((node, self.now));
            }
            NodeFact::Resumed { after } if *after > STOOD_STILL => {
                if let Some((_, since)) = self.leads.get_mut(&node) {
                    *since = self.now;
                }
            }
            NodeFact::Confirms { term, since } => self.confirms(node, *term, *since)?,
            NodeFact::Expires { session, term } => self.expires(node, *session, *term)?,
            _ => {}
        }
        Ok(())
    }

    /// Who was elected later has asked a quorum, one of whom has acknowledged this leader before.
    fn confirms(&self, node: NodeId, term: u64, since: Nanos) -> Result<(), String> {
        let mut later = self.elected.range(term + 1..).filter(|(_, (_, from))| *from < since);
        match later.next().filter(|_| self.has_bounded_clocks) {
            Some((later, (leader, from))) => Err(format!(
                "node {node} confirms sessions at {} as leader of term {term} by a quorum's word of {since}, and node \
                 {leader} has led term {later} from {from} on",
                self.now
            )),
            None => Ok(()),
        }
    }

    fn expires(&mut self, node: NodeId, session: SessionId, term: u64) -> Result<(), String> {
        let Some((_, leads_since)) = self.leads.get(&node).filter(|(leads, _)| *leads == term) else {
            return Err(format!("node {node} expires session {session} and does not lead term {term}"));
        };
        // A leader of a later term has been elected, so this decision cannot enter the log. If it did after
        // all, the end of the session would be one that no leader has decided.
        if self.elected.range(term + 1..).next().is_some() {
            return Ok(());
        }
        // Decided before, and proposed again because the log did not say so.
        if self.decided.insert(session, (node, term)) == Some((node, term)) {
            return Ok(());
        }
        let Some(known) = self.sessions.get(&session) else { return Ok(()) };
        let since = known.since.max(*leads_since);
        let timeout = Duration::from_millis(known.timeout_ms.into()) * self.left_percent() / 100;
        if self.has_bounded_clocks && !self.with_grace.contains(&session) && self.now < since + timeout {
            return Err(format!(
                "node {node} expires session {session} at {}, and its {} ms cannot have begun before {since}",
                self.now, known.timeout_ms
            ));
        }
        Ok(())
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Result<(), String> {
        match what {
            ClientFact::Session { session, grace_ms: Some(_), .. } => {
                self.with_grace.insert(*session);
            }
            ClientFact::Alive { session, .. }
                if self.has_bounded_clocks
                    && self.expired.contains(session)
                    && !self.with_grace.contains(session) =>
            {
                return Err(format!(
                    "client {} believes at {} in session {session}, which has expired",
                    client.0, self.now
                ));
            }
            ClientFact::Alive { session, for_ms } => {
                let left = Duration::from_millis((*for_ms).into());
                self.assured.insert(*session, self.now + left * self.left_percent() / 100);
                if let Some(known) = self.sessions.get_mut(session).filter(|_| self.has_true_clocks) {
                    let lasts = Duration::from_millis(known.timeout_ms.into()) * (100 - MARGIN_PERCENT) / 100;
                    let answered = Nanos((self.now + left).0.saturating_sub(lasts.as_nanos() as u64));
                    known.since = known.since.max(answered);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A session has ended. A client that was assured of it until later could not know.
    fn ended(&mut self, session: SessionId, end: SessionEnd) -> Result<(), String> {
        self.sessions.remove(&session);
        let (is_decided, assured) = (self.decided.remove(&session).is_some(), self.assured.remove(&session));
        if end != SessionEnd::Expired {
            return Ok(());
        }
        self.expired.insert(session);
        if !is_decided {
            return Err(format!("session {session} expired, and no leader has decided so"));
        }
        let is_judged = self.has_bounded_clocks && !self.with_grace.contains(&session);
        match assured.filter(|until| is_judged && self.now < *until) {
            Some(until) => Err(format!(
                "session {session} expired at {}, and its client has been assured of it until {until}",
                self.now
            )),
            None => Ok(()),
        }
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
            | Fact::SessionAttached { session, timeout_ms, .. } => {
                self.decided.remove(session);
                self.sessions.insert(*session, Session { timeout_ms: *timeout_ms, since: self.now });
            }
            Fact::SessionEnded { session, end, .. } => {
                self.ended(*session, *end)?;
            }
            Fact::Node { node, what, .. } => self.node(*node, what)?,
            Fact::Client { client, what, .. } => self.client(*client, what)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rowlock_state::command::Attachment;

    use super::super::super::judge;
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
        node_at(at_ms, 1, NodeFact::Expires { session: SESSION, term: 3 })
    }

    fn expired() -> Fact {
        Fact::SessionEnded { session: SESSION, end: SessionEnd::Expired, at: Millis(0) }
    }

    fn opinion(facts: &[Fact]) -> Result<(), String> {
        judge(SessionExpiry::new(true), facts)
    }

    #[test]
    fn an_expiry_before_the_timeout_is_caught() {
        assert!(opinion(&[leads(100), opened(), expires(1_049)]).is_err());
        assert_eq!(opinion(&[leads(100), opened(), expires(1_050), expired()]), Ok(()));
        assert!(opinion(&[leads(0), opened(), leads(500), expires(1_400)]).is_err(), "a leader anew");
        assert_eq!(judge(SessionExpiry::new(false), &[leads(100), opened(), expires(200)]), Ok(()));
        let (session, timeout_ms, grace_ms) = (SESSION, 1_000, Some(50));
        let grace = client_at(100, 1, ClientFact::Session { session, timeout_ms, grace_ms });
        assert_eq!(opinion(&[leads(100), opened(), grace, expires(200)]), Ok(()));
    }

    #[test]
    fn where_all_clocks_are_true_an_expiry_is_early_by_any_time() {
        let exact = |facts: &[Fact]| judge(SessionExpiry::new(true).with_true_clocks(true), facts);
        assert!(exact(&[leads(100), opened(), expires(1_099)]).is_err());
        assert_eq!(exact(&[leads(100), opened(), expires(1_100)]), Ok(()));
        // Believes for 800 ms more at 500: its last answered heartbeat was sent at 400.
        let alive = client_at(500, 1, ClientFact::Alive { session: SESSION, for_ms: 800 });
        assert!(exact(&[leads(100), opened(), alive.clone(), expires(1_399)]).is_err());
        assert_eq!(exact(&[leads(100), opened(), alive.clone(), expires(1_400)]), Ok(()));
        assert_eq!(opinion(&[leads(100), opened(), alive, expires(1_399)]), Ok(()), "clocks may be off");
    }

    #[test]
    fn an_expiry_by_a_leader_that_has_just_stood_still_is_caught() {
        let resumed =
            |at_ms, after_ms| node_at(at_ms, 1, NodeFact::Resumed { after: Duration::from_millis(after_ms) });
        assert!(opinion(&[leads(100), opened(), resumed(5_000, 4_000), expires(5_100)]).is_err());
        assert_eq!(opinion(&[leads(100), opened(), resumed(5_000, 4_000), expires(6_000)]), Ok(()));
        assert_eq!(opinion(&[leads(100), opened(), resumed(5_000, 900), expires(5_100)]), Ok(()));
        let decided = [leads(100), opened(), expires(1_200), resumed(5_000, 3_500), expires(5_001)];
        assert_eq!(opinion(&decided), Ok(()), "it had been decided before");
    }

    #[test]
    fn a_word_of_a_quorum_from_the_time_of_a_later_leader_is_caught() {
        let confirms =
            |since_ms| node_at(900, 1, NodeFact::Confirms { term: 3, since: Nanos::from_millis(since_ms) });
        let later = node_at(500, 2, NodeFact::Leads { term: 4 });
        assert_eq!(opinion(&[leads(100), confirms(800)]), Ok(()));
        assert_eq!(opinion(&[leads(100), later.clone(), confirms(499)]), Ok(()), "it was so then");
        assert!(opinion(&[leads(100), later.clone(), confirms(501)]).unwrap_err().contains("term 4 from"));
        let latest = node_at(800, 3, NodeFact::Leads { term: 5 });
        assert!(
            opinion(&[leads(100), later.clone(), latest, confirms(501)]).is_err(),
            "whoever came behind it"
        );
        assert_eq!(judge(SessionExpiry::new(false), &[leads(100), later, confirms(501)]), Ok(()));
    }

    #[test]
    fn an_expiry_by_who_does_not_lead_is_caught() {
        assert!(opinion(&[opened(), expires(5_000)]).is_err());
        let restarted = node_at(200, 1, NodeFact::Started);
        assert!(opinion(&[leads(100), opened(), restarted, expires(5_000)]).is_err());
        assert!(opinion(&[opened(), expired()]).unwrap_err().contains("no leader"));
    }

    /// Seed 304499 of 30 s, all faults: a leader that had been cut off for 800 ms expired a session whose
    /// client had moved to the new leader's side meanwhile.
    #[test]
    fn what_a_leader_decides_after_the_election_of_another_one_must_not_take_effect() {
        let later = node_at(500, 2, NodeFact::Leads { term: 4 });
        let facts = [leads(100), later, opened(), expires(1_000), expired()];
        assert_eq!(opinion(&facts[..4]), Ok(()));
        assert!(opinion(&facts).unwrap_err().contains("no leader has decided so"));
    }

    #[test]
    fn a_client_that_believes_in_an_expired_session_is_caught() {
        let alive = |at_ms| client_at(at_ms, 1, ClientFact::Alive { session: SESSION, for_ms: 0 });
        let facts = [leads(0), opened(), alive(900), expires(5_000), alive(5_000), expired()];
        assert_eq!(opinion(&facts), Ok(()));
        assert!(opinion(&[&facts[..], &[alive(5_001)]].concat()).is_err());
    }

    #[test]
    fn an_end_before_the_time_of_which_the_client_was_assured_is_caught() {
        let assured = |for_ms| client_at(900, 1, ClientFact::Alive { session: SESSION, for_ms });
        let facts = |for_ms| [leads(0), opened(), assured(for_ms), expires(1_500), expired()];
        assert_eq!(opinion(&facts(600)), Ok(()));
        assert!(opinion(&facts(700)).unwrap_err().contains("assured"));
        assert_eq!(judge(SessionExpiry::new(false), &facts(700)), Ok(()));
    }
}
