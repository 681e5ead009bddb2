//! in-time: what the world owes comes within the bound of its [`Debt`]. Each leadership, hand-over,
//! reconnect, heartbeat, call, grant and notice carries since when it is owed ([`owed`]), and its excess is a
//! sample. At rest no call of a living client is pending. While nothing but load is wrong, the leader stays.
//!
//! The simulated world reports the connections ([`Fact::Connected`]), so a cluster's own misjudgment of the
//! state is no excuse.

mod autopilot;
mod grants;
mod lateness;
mod owed;
mod upgrade;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::{FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::STATE_LOCK_MS;
use rowlock_world::time::Nanos;

use self::autopilot::Autopilot;
use self::grants::{Due, Grants};
pub use self::lateness::{Debt, Histogram, Lateness};
use self::owed::{Door, Leader, Owed, Session};
use self::upgrade::Upgrade;
use super::super::{Invariant, Terms};
use super::disturbances::Disturbances;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Failure, Link, Op, WatchId};
use crate::history::node::{Down, NodeFact};
use crate::history::{Book, Fact, Index, Lock, Millis};

struct Open {
    client: ClientId,
    session: SessionId,
    since: Nanos,
    op: Arc<Op>,
}

/// A holder's first check after a request, and the lateness at the last one. A later check in which the
/// holder has heard shows nothing: the holder may have heard at any time since.
type Checks = (Nanos, Duration);

#[derive(Default)]
pub struct InTime {
    /// The cluster owes nothing: its majority may be gone for good.
    is_free: bool,
    owed: Owed,
    sessions: BTreeMap<SessionId, Session>,
    open: BTreeMap<CallId, Open>,
    grants: Grants,
    /// Sessions of one-shot watches, and the times of changes that fire them.
    watches: BTreeMap<WatchId, SessionId>,
    committed: BTreeMap<Zxid, Nanos>,
    /// Time at which the last leader stopped on request, without a successor.
    left: Option<Nanos>,
    /// Index of the last committed membership, and the time of the commit if the voters change.
    members: (Index, Option<Nanos>),
    autopilot: Autopilot,
    upgrade: Upgrade,
    /// Newest requests to release a held lock of which the holder has not heard, with the holder's session.
    questions: BTreeMap<(Lock, FencingToken), (Millis, SessionId, Option<Checks>)>,
    /// Requests to release with a deadline: lock, time, milliseconds. A request applies to the lives of the
    /// cluster in which the client sent it.
    asks: Vec<(Lock, Nanos, u32)>,
    /// Requests of quiet clients that are due.
    quiet: BTreeMap<ClientId, (Nanos, &'static str)>,
    disturbances: Disturbances,
    lateness: Lateness,
}

impl InTime {
    pub fn new(terms: &Terms) -> Self {
        let autopilot = Autopilot::new(terms.removes_down_to);
        let disturbances = terms.disturbances.clone();
        InTime { is_free: !terms.owes_service, disturbances, autopilot, ..InTime::default() }
    }

    /// Returns an error for a debt since `since` that is later than its bound.
    fn check(&self, debt: Debt, since: Option<Nanos>, what: impl Fn() -> String) -> Result<Duration, String> {
        let Some(since) = since else { return Ok(Duration::ZERO) };
        let late =
            if debt == Debt::Quiet { self.owed.now - since } else { self.owed.late(since, debt.flushes()) };
        if late <= debt.bound() {
            return Ok(late);
        }
        let (name, what, now) = (debt.name(), what(), self.owed.now);
        Err(format!("{name}: {what}, owed since {since}, comes {late:?} late at {now}"))
    }

    /// Ends a debt, and records its lateness.
    fn end(&mut self, debt: Debt, since: Option<Nanos>, what: impl Fn() -> String) -> Result<(), String> {
        let late = self.check(debt, since, what)?;
        if since.is_some_and(|since| since <= self.owed.now || debt == Debt::Leader) {
            self.lateness.add(debt, late);
        }
        Ok(())
    }

    fn since(&self, session: SessionId, begun: Nanos) -> Option<Nanos> {
        self.owed.since(self.sessions.get(&session), begun, false)
    }

    /// Returns since when the client has to learn of a grant, or to leave.
    fn due_since(&self, due: &Due) -> Option<Nanos> {
        let hides = |request: Nanos| self.disturbances.hidden_resets(request, self.owed.now) > 0;
        self.since(due.session, due.since).filter(|_| !due.request.is_some_and(hides))
    }

    fn is_lease(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.door == Door::Lease)
    }

    fn tell(&mut self, key: (Lock, FencingToken), session: Option<SessionId>) -> Result<(), String> {
        let is_lease = session.is_some_and(|session| self.is_lease(session));
        match self.grants.tell(key, is_lease) {
            Some(due) => self.end(due.debt, self.due_since(&due), || described(&due)),
            None => Ok(()),
        }
    }

    fn leads(&mut self, leader: Leader) -> Result<(), String> {
        // Of two leaders of one term, the one with the higher number has deposed the other one.
        if self.owed.leader.is_some_and(|known| (known.term, known.node) >= (leader.term, leader.node)) {
            return Ok(());
        }
        self.stays(leader.node, leader.term)?;
        let left = self.left.take().map(|left| (Debt::HandOver, Some(left)));
        let (debt, due) = left.unwrap_or_else(|| (Debt::Leader, self.owed.leader_since()));
        self.end(debt, due, || format!("node {} leads term {}", leader.node, leader.term))?;
        self.owed.leader = Some(leader);
        Ok(())
    }

    /// Returns an error for a vote or a leader of a new term while nothing but load is wrong.
    fn stays(&self, node: NodeId, term: u64) -> Result<(), String> {
        let Owed { leader, now, is_settled, .. } = self.owed;
        match leader.filter(|known| known.term < term && !is_settled && self.disturbances.spare(now, now)) {
            Some(known) => Err(format!(
                "node {node} begins term {term} at {now}, while node {} leads term {}, and nothing but load is wrong",
                known.node, known.term
            )),
            None => Ok(()),
        }
    }

    fn ended(&mut self, node: NodeId, how: Down) -> Result<(), String> {
        let led = self.owed.leader.is_some_and(|leader| leader.node == node);
        if how == Down::Stopped && self.owed.owes_hand_over() {
            match led {
                true => self.left = Some(self.owed.now),
                false => self.end(Debt::HandOver, Some(self.owed.now), String::new)?,
            }
        }
        if led {
            let is_quick = how != Down::PowerLost && self.owed.has_rested();
            (self.owed.leader, self.owed.lost) = (None, Some((self.owed.now, is_quick)));
        }
        Ok(())
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Result<(), String> {
        let now = self.owed.now;
        match what {
            ClientFact::Session { session, timeout_ms, .. } => {
                let timeout = Duration::from_millis(u64::from(*timeout_ms));
                self.sessions.insert(*session, Session { client, timeout, door: Door::Own(Ok(now)) });
            }
            ClientFact::Plain { session } => self.change(*session, |it| it.door = Door::Plain),
            ClientFact::Lease { session } => self.change(*session, |it| it.door = Door::Lease),
            ClientFact::Link { session, now: link } => return self.linked(*session, *link),
            ClientFact::Alive { session, for_ms } => return self.lives(*session, *for_ms),
            ClientFact::Invoked { call, session, op } => self.invoked(client, (*call, *session), op),
            ClientFact::Returned { call, result } => return self.returned(*call, result),
            ClientFact::Holds { lock, token, .. } => {
                self.tell((*lock, *token), None)?;
                return self.hears((*lock, *token), None);
            }
            ClientFact::Asks { lock, within_ms: Some(ms) } => self.asks.push((*lock, now, *ms)),
            ClientFact::GaveUp { lock, .. } => return self.given_up(*lock),
            ClientFact::Heard { lock, token, asked } => return self.hears((*lock, *token), Some(*asked)),
            ClientFact::Event { watch, path, zxid, .. } => {
                // The event for a change during the client's absence may name no change.
                let change = self.committed.get(zxid).copied();
                if let (Some(session), Some(change)) = (self.watches.remove(watch), change) {
                    let what = || format!("the event of {zxid} on {path} for session {session}");
                    return self.end(Debt::Notice, self.since(session, change), what);
                }
            }
            ClientFact::Waits { request } => drop(self.quiet.insert(client, (now, *request))),
            ClientFact::Served => {
                let (since, request) = self.quiet.remove(&client).unwrap_or((now, "request"));
                return self
                    .end(Debt::Quiet, self.quiet_since(since), || format!("the answer to a {request}"));
            }
            ClientFact::Ended => {
                self.quiet.remove(&client);
                self.open.retain(|_, open| open.client != client);
                let own = self.sessions.iter().filter(|(_, session)| session.client == client);
                own.map(|(id, _)| *id).collect::<Vec<_>>().into_iter().for_each(|id| self.forget(id));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a holder that checks its lock, and has heard of the question asked at this time. A client by
    /// HTTP moves its deadline and reports nothing.
    fn hears(&mut self, key: (Lock, FencingToken), heard: Option<Millis>) -> Result<(), String> {
        let now = self.owed.now;
        let Some((asked, session, checked)) = self.questions.get(&key).copied() else { return Ok(()) };
        if heard.is_some_and(|heard| heard >= asked) {
            self.questions.remove(&key);
            self.lateness.add(Debt::Question, checked.map_or(Duration::ZERO, |(_, late)| late));
            return Ok(());
        }
        let begun = checked.map_or(now, |(begun, _)| begun);
        let since = self.since(session, begun).filter(|_| !self.is_lease(session));
        let what = || format!("the holder {session} of {key:?} hears what was asked at {asked:?}");
        let late = self.check(Debt::Question, since, what)?;
        self.questions.insert(key, (asked, session, Some((begun, late))));
        Ok(())
    }

    /// Checks a holder that gives up because of a deadline: the holder waits for most of the time at least,
    /// since clocks of clients may run faster.
    fn given_up(&self, lock: Lock) -> Result<(), String> {
        let (now, least) = (self.owed.now, |ms: u32| Duration::from_millis(ms.into()).mul_f64(0.9));
        match self.asks.iter().any(|(of, since, ms)| *of == lock && now >= *since + least(*ms)) {
            true => Ok(()),
            false => Err(format!("the holder of {lock:?} gave up at {now}, before any deadline")),
        }
    }

    fn change(&mut self, session: SessionId, change: impl FnOnce(&mut Session)) {
        if let Some(session) = self.sessions.get_mut(&session) {
            change(session);
        }
    }

    /// Forgets a session, to which nothing is owed any more.
    fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.grants.forget_session(session);
        self.watches.retain(|_, own| *own != session);
    }

    fn linked(&mut self, id: SessionId, link: Link) -> Result<(), String> {
        let now = self.owed.now;
        let session = self.sessions.get(&id).filter(|_| link == Link::Up);
        let since = session.and_then(|session| self.cut_since(session));
        self.change(id, |it| {
            it.door = match link {
                Link::Up => Door::Own(Ok(now)),
                Link::Down => Door::Own(Err(now)),
                Link::Closing => Door::Plain,
            }
        });
        self.end(Debt::Reconnect, since, || format!("a connection of session {id}"))
    }

    /// Returns since when a connection is due, for a session without one. Each hidden reset costs an attempt,
    /// whose server is silent to the client.
    fn cut_since(&self, session: &Session) -> Option<Nanos> {
        match session.door {
            Door::Own(Err(cut)) => {
                let lost =
                    u32::try_from(self.disturbances.hidden_resets(cut, self.owed.now)).unwrap_or(u32::MAX);
                let since = self.owed.since(Some(session), cut, true)?;
                Some(since + (session.timeout / 3).saturating_mul(lost))
            }
            _ => None,
        }
    }

    /// A heartbeat goes out each third of the timeout; the client believes in the session until nine tenths
    /// of the timeout after the last answered one.
    fn lives(&mut self, id: SessionId, for_ms: u32) -> Result<(), String> {
        let Some(session) = self.sessions.get(&id) else { return Ok(()) };
        let Door::Own(Ok(_)) = session.door else { return Ok(()) };
        let left = Duration::from_millis(u64::from(for_ms));
        let age = (session.timeout * 9 / 10).saturating_sub(left);
        let due = (Nanos(0) + (self.owed.now - Nanos(0)).saturating_sub(age)) + session.timeout / 3;
        let since = self.since(id, due);
        self.end(Debt::Heartbeat, since, || format!("a heartbeat of session {id}, which has {left:?} left"))
    }

    fn invoked(&mut self, client: ClientId, (call, session): (CallId, SessionId), op: &Arc<Op>) {
        let since = self.owed.now;
        match &**op {
            Op::Acquire { lock, .. } => self.grants.ask(call, (session, *lock), since),
            Op::Held { .. } => self.grants.request(call, session, since),
            Op::Read { watch: Some(watch), .. } => drop(self.watches.insert(*watch, session)),
            _ => {}
        }
        self.open.insert(call, Open { client, session, since, op: op.clone() });
    }

    fn returned(&mut self, call: CallId, result: &Result<Answer, Failure>) -> Result<(), String> {
        let Some(open) = self.open.remove(&call) else { return Ok(()) };
        match (&*open.op, result) {
            (Op::Acquire { lock, .. }, Ok(Answer::Acquired(token))) => {
                self.tell((*lock, *token), Some(open.session))?;
            }
            (Op::Held { .. }, Ok(Answer::Held(tokens))) => {
                let own: Vec<_> = self.grants.places_of(open.session).collect();
                for key in own.into_iter().filter(|(_, token)| tokens.contains(token)) {
                    self.tell(key, Some(open.session))?;
                }
            }
            (Op::Acquire { .. } | Op::Held { .. }, _) => {}
            _ => self.end(Debt::Call, self.since(open.session, open.since), || described_call(&open))?,
        }
        self.grants.end(call, self.owed.now);
        Ok(())
    }

    /// Returns since when a change of voters is due: while a quorum of both sets is connected.
    fn change_since(&self) -> Option<Nanos> {
        let core = self.owed.core.as_ref().filter(|_| !self.owed.is_settled)?;
        Some(self.members.1?.max(core.changed))
    }

    fn quiet_since(&self, since: Nanos) -> Option<Nanos> {
        self.disturbances.spare(since, self.owed.now).then_some(since)
    }

    /// Checks what has not come yet.
    fn overdue(&self) -> Result<(), String> {
        let owed = &self.owed;
        self.check(Debt::Leader, owed.leader_since(), || {
            let may_lead = owed.connected().map(|connected| connected.may_lead.clone());
            format!("a leader of {:?}", may_lead.unwrap_or_default())
        })?;
        self.check(Debt::Change, self.change_since(), || "a change of voters".to_owned())?;
        let since = owed.autopilot_since();
        self.check(Debt::Autopilot, since, || "a change of members by the leader itself".to_owned())?;
        self.check(Debt::Version, self.upgrade.since(owed), || "a new version".to_owned())?;
        let waits = |op: &Op| matches!(op, Op::Acquire { .. } | Op::Held { .. });
        for open in self.open.values().filter(|open| !waits(&open.op)) {
            self.check(Debt::Call, self.since(open.session, open.since), || described_call(open))?;
        }
        for (id, session) in &self.sessions {
            self.check(Debt::Reconnect, self.cut_since(session), || format!("a connection of session {id}"))?;
        }
        for (since, request) in self.quiet.values() {
            self.check(Debt::Quiet, self.quiet_since(*since), || format!("the answer to a {request}"))?;
        }
        for due in self.grants.all_due(|session| self.is_lease(session)) {
            self.check(due.debt, self.due_since(&due), || described(&due))?;
        }
        Ok(())
    }

    fn log(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        let now = self.owed.now;
        match fact {
            Fact::Queued { lock, token, session, .. } => self.grants.queue((*lock, *token), *session, now),
            Fact::Entitled { lock, token, .. } => self.grants.grant((*lock, *token), now),
            Fact::Left { lock, token, .. } => {
                self.questions.remove(&(*lock, *token));
                self.grants.forget((*lock, *token));
            }
            Fact::Questioned { lock, token, asked } => {
                if let Some(position) = book.position(*lock, *token) {
                    self.questions.insert((*lock, *token), (*asked, position.session, None));
                }
            }
            // The program may be dead: its state lock stays.
            Fact::SessionAttached { session, timeout_ms: STATE_LOCK_MS, .. } => {
                self.grants.forget_session(*session);
            }
            Fact::SessionEnded { session, .. } => self.forget(*session),
            Fact::NewLife(_) => {
                (self.grants, self.questions, self.committed) = Default::default();
                (self.owed.leader, self.members) = (None, (Index(0), None));
            }
            Fact::Version { number, is_held } => {
                let since = self.upgrade.since(&self.owed);
                if self.upgrade.change(*number, *is_held)? {
                    return self.end(Debt::Version, since, || format!("version {number}"));
                }
            }
            Fact::Operated { holds, .. } => return self.upgrade.operate(*holds, now),
            Fact::Znode(znode) => drop(self.committed.insert(znode.zxid, now)),
            _ => {}
        }
        Ok(())
    }
}

fn described(Due { session, what: (lock, token), .. }: &Due) -> String {
    format!("{token} of {lock:?}, granted to session {session}")
}

fn described_call(open: &Open) -> String {
    format!("{:?} of client {} since {}", open.op, open.client.0, open.since)
}

impl Invariant for InTime {
    fn name(&self) -> &'static str {
        "in-time"
    }

    fn lateness(&self) -> Lateness {
        self.lateness
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        self.owed.now = fact.true_time().unwrap_or(self.owed.now);
        match fact {
            _ if self.is_free => {}
            Fact::Connected { now, .. } => self.owed.change(now),
            Fact::Healed { at } => self.owed.healed = Some(*at),
            Fact::Node { node, at, what: NodeFact::Leads { term } } => {
                return self.leads(Leader { node: *node, term: *term, since: *at });
            }
            Fact::Node { node, what: NodeFact::Voted { term, .. }, .. } => return self.stays(*node, *term),
            Fact::Node { at, what: NodeFact::Applied { entry, .. }, .. } if entry.index > self.members.0 => {
                if let Some(members) = book.members(*entry) {
                    self.end(Debt::Change, self.change_since(), || "a change of voters".to_owned())?;
                    let since = self.owed.autopilot_since();
                    self.end(Debt::Autopilot, since, || format!("the change to {members:?}"))?;
                    self.autopilot.commit(*entry, members)?;
                    self.members = (entry.index, (members.voters.len() > 1).then_some(*at));
                }
            }
            Fact::Node { what: NodeFact::Members { entry, .. }, .. } => {
                self.autopilot.propose(*entry, &self.owed);
            }
            Fact::Node { node, what: NodeFact::Ended { how }, .. } => return self.ended(*node, *how),
            Fact::Client { client, what, .. } => {
                return self.client(*client, what);
            }
            Fact::Probed { began, node, outcome, .. } => {
                let since = self.owed.serves_since(*node, *began);
                if let (Err(why), true) = (outcome, since == Some(*began)) {
                    return Err(format!("probe: a client of node {node} since {began} {why}"));
                }
                return self.end(Debt::Probe, since, || format!("service for a client of node {node}"));
            }
            Fact::Passed { .. } => return self.overdue(),
            Fact::Settled => {
                self.owed.is_settled = true;
                let open = self.open.values().next();
                return open.map_or(Ok(()), |open| Err(format!("{} never ends", described_call(open))));
            }
            fact => return self.log(fact, book),
        }
        Ok(())
    }
}
