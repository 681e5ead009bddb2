//! Passes all facts of a run to the checkers at once, and counts them. Every source of facts has a handle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::{Batch, Command, Proposal};
use rowlock_world::executor::Simulation;
use rowlock_world::time::Nanos;
use rowlock_world::trace::What;

use crate::fact_recorder::Reference;
use crate::history::client::{Answer, CallId, ClientFact, ClientId, Op, WatchId};
use crate::history::node::{Members, NodeFact, Position};
use crate::history::{Fact, Index, Locks};
use crate::invariants::{Invariants, Lateness, ModelEvents, Terms, Violation};

/// Returns the address of the host that runs this client.
pub fn client_address(client: ClientId) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, u8::try_from(client.0 + 1).expect("a run has few clients"))
}

#[derive(Clone)]
pub struct Record {
    sim: Simulation,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    invariants: Invariants,
    reference: Reference,
    violation: Option<Violation>,
    waiting: BTreeMap<CallId, ClientId>,
    /// Nodes with the newest first half of a change of voters in their logs.
    changing: (Position, BTreeSet<NodeId>),
    /// Last membership that a node has applied.
    committed: Option<(Position, Arc<Members>)>,
    facts: u64,
    calls: u64,
    watches: u64,
    acknowledged: u64,
    grants: u64,
    /// Largest zxid in any client's reply.
    answered: Zxid,
    /// Digests of the nodes' states after each entry.
    applied: BTreeMap<Position, u64>,
    /// Last entry that each node has acknowledged to a leader.
    told: BTreeMap<NodeId, Index>,
    /// Most milliseconds that an expired TTL znode is there, if that is promised.
    swept_within_ms: Option<i64>,
    /// Entry with which the cluster restarted after a power loss. Nodes with a log of the time before report
    /// facts about entries that no other node has.
    restart: Option<Position>,
    /// Leaderships so far, by term and node.
    leads: BTreeSet<(u64, NodeId)>,
    /// Facts about logs since a restart is in a log, which no node has applied yet.
    since_restart: Option<Vec<Fact>>,
}

/// Returns whether an entry is the restart of a cluster after a power loss.
fn is_restart(payload: &[u8]) -> bool {
    let is_it = |proposal: &Proposal| matches!(proposal.command, Command::Restart { .. });
    Batch::decode(payload).is_ok_and(|batch| batch.proposals.iter().any(is_it))
}

/// Returns whether the fact is about a log of the time before the restart.
fn is_of_former_log(restart: Position, node: NodeId, what: &NodeFact) -> bool {
    match what {
        NodeFact::Members { entry, .. }
        | NodeFact::Appended { entry, .. }
        | NodeFact::Applied { entry, .. } => *entry <= restart,
        NodeFact::Acknowledged { upto } => *upto <= restart,
        NodeFact::Installed { entry, .. } => entry.is_none_or(|entry| entry <= restart),
        NodeFact::Leads { term } | NodeFact::Confirms { term, .. } | NodeFact::Expires { term, .. } => {
            (*term, node) < (restart.term, restart.leader)
        }
        _ => false,
    }
}

impl Inner {
    /// Passes a fact to the checkers. Returns the text of the first broken promise.
    fn observe(&mut self, fact: &Fact) -> Option<String> {
        self.facts += 1;
        match fact {
            Fact::Client { client, what: ClientFact::Invoked { call, op, .. }, .. } => {
                if matches!(**op, Op::Acquire { .. }) {
                    self.waiting.insert(*call, *client);
                }
            }
            Fact::Client { what: ClientFact::Returned { call, result }, .. } => {
                self.acknowledged += u64::from(result.is_ok());
                let zxid = result.as_ref().ok().and_then(Answer::zxid);
                self.answered = self.answered.max(zxid.unwrap_or_default());
                self.waiting.remove(call);
            }
            Fact::Client { client, what: ClientFact::Ended, .. } => {
                self.waiting.retain(|_, who| who != client);
            }
            Fact::Entitled { .. } => self.grants += 1,
            Fact::Node { what: NodeFact::Applied { entry, digest, .. }, .. } => {
                self.applied.insert(*entry, *digest);
                let is_newer = self.committed.as_ref().is_none_or(|(last, _)| entry > last);
                if let Some(members) = self.invariants.book().members(*entry).filter(|_| is_newer) {
                    self.committed = Some((*entry, members.clone()));
                }
            }
            Fact::Node { node, what: NodeFact::Leads { term }, .. } => {
                self.leads.insert((*term, *node));
            }
            Fact::Node { node, what: NodeFact::Acknowledged { upto }, .. } => {
                let told = self.told.entry(*node).or_default();
                *told = upto.index.max(*told);
            }
            Fact::Node { node, what: NodeFact::Truncated { after }, .. } => {
                self.told.entry(*node).and_modify(|told| *told = (*told).min(*after));
            }
            Fact::Node { node, what: NodeFact::Members { entry, members }, .. } => {
                if members.voters.len() > 1 && *entry > self.changing.0 {
                    self.changing = (*entry, BTreeSet::new());
                }
                if *entry == self.changing.0 {
                    self.changing.1.insert(*node);
                }
            }
            _ => {}
        }
        if self.violation.is_some() {
            return None;
        }
        let violation = self.invariants.observe(fact).err()?;
        self.break_promise(violation)
    }

    /// Compares the whole state of the reference with the oracle's.
    fn compare(&mut self) -> Option<String> {
        let fact = self.reference.compare()?;
        self.observe(&fact)
    }

    fn compare_at_end(&mut self) -> Option<String> {
        let differs = self.reference.compare();
        let fact = differs.or_else(|| self.reference.swept(self.swept_within_ms?))?;
        self.observe(&fact)
    }

    fn log(&mut self, entry: Position, payload: Option<&[u8]>) -> Option<String> {
        if self.restart.is_some_and(|restart| entry <= restart) {
            return None;
        }
        match self.reference.apply(entry.index, payload) {
            Ok(facts) => facts.iter().find_map(|fact| self.observe(fact)),
            Err(what) => self.break_promise(Violation { invariant: "replica-equality", what }),
        }
    }

    fn restart_at(&mut self, entry: Position, machine: &Machine, at: Nanos) -> Option<String> {
        if self.restart.is_some_and(|restart| entry <= restart) {
            return None;
        }
        let differs = self.compare();
        let lost = self.reference.lost_in_restart(entry.index);
        self.restart = Some(entry);
        let new = self.reference.restart(machine.clone(), entry);
        self.applied.clear();
        self.told.clear();
        let broken = lost.err().and_then(|what| self.break_promise(Violation { invariant: "durable", what }));
        let leads = |(term, node): &(u64, NodeId)| Fact::Node {
            node: *node,
            at,
            what: NodeFact::Leads { term: *term },
        };
        // Leaders begin before the first node has applied the restart.
        let leading: Vec<Fact> = self.leads.range((entry.term, entry.leader)..).map(leads).collect();
        let is_later = |fact: &Fact| matches!(fact, Fact::Node { node, what, .. } if !is_of_former_log(entry, *node, what));
        let later = self.since_restart.take().unwrap_or_default().into_iter().filter(is_later);
        let rest: Vec<Fact> = [new].into_iter().chain(leading).chain(later).collect();
        differs.or(broken).or_else(|| rest.iter().find_map(|fact| self.observe(fact)))
    }

    fn break_promise(&mut self, violation: Violation) -> Option<String> {
        if self.violation.is_some() {
            return None;
        }
        let text = violation.to_string();
        self.violation = Some(violation);
        Some(text)
    }
}

impl Record {
    /// Creates an empty record for a cluster whose clients use these locks. `terms` limits the checkers'
    /// demands.
    pub fn new(sim: Simulation, locks: Locks, terms: Terms) -> Self {
        let millis = |within: Duration| i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        let swept_within_ms = terms.swept_within.map(millis);
        let (invariants, violation) = (Invariants::of_a_cluster_on(terms), None);
        let reference = Reference::new(locks);
        let (facts, calls, watches, acknowledged, grants) = (0, 0, 0, 0, 0);
        let (waiting, applied, told) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let answered = Zxid::default();
        let none = Position { term: 0, leader: NodeId(0), index: Index(0) };
        let inner = Inner {
            invariants,
            reference,
            violation,
            waiting,
            changing: (none, BTreeSet::new()),
            committed: None,
            facts,
            calls,
            watches,
            acknowledged,
            grants,
            answered,
            applied,
            told,
            swept_within_ms,
            restart: None,
            leads: BTreeSet::new(),
            since_restart: None,
        };
        Record { sim, inner: Arc::new(Mutex::new(inner)) }
    }

    pub fn now(&self) -> Nanos {
        self.sim.now()
    }

    /// Reports a fact. After the first broken promise the checkers see no further facts.
    pub fn report(&self, fact: &Fact) {
        let broken = {
            let mut inner = self.inner.lock();
            let compared = matches!(fact, Fact::Settled).then(|| inner.compare_at_end()).flatten();
            compared.or_else(|| inner.observe(fact))
        };
        self.trace_violation(broken);
    }

    /// Applies an entry of the log to the reference and reports its facts, once for all nodes.
    pub fn log(&self, entry: Position, payload: Option<&[u8]>) {
        let broken = self.inner.lock().log(entry, payload);
        self.trace_violation(broken);
    }

    /// Keeps the facts about logs from now on if the entry, new in a log, is a restart.
    pub fn may_restart(&self, payload: Option<&[u8]>) {
        if payload.is_some_and(is_restart) {
            self.inner.lock().since_restart.get_or_insert_default();
        }
    }

    /// Restarts with this state if the entry is the restart of a cluster after a power loss.
    pub fn restart_at(&self, entry: Position, payload: Option<&[u8]>, machine: &Machine) {
        if payload.is_some_and(is_restart) {
            let broken = self.inner.lock().restart_at(entry, machine, self.now());
            self.trace_violation(broken);
        }
    }

    /// Begins a new cluster with this state after the entry `beginning`.
    pub fn begin_new_cluster(&self, machine: Machine, beginning: Position) {
        let broken = {
            let mut inner = self.inner.lock();
            inner.compare();
            let new = inner.reference.begin_anew(machine, beginning);
            inner.applied.clear();
            inner.told.clear();
            inner.restart = None;
            inner.observe(&new)
        };
        self.trace_violation(broken);
    }

    /// Returns the largest zxid in any client's reply so far.
    pub fn answered(&self) -> Zxid {
        self.inner.lock().answered
    }

    /// Returns whether the log has led to a state with this last zxid and this digest.
    pub fn has_been(&self, zxid: Zxid, digest: u64) -> bool {
        self.inner.lock().reference.has_been(zxid, digest)
    }

    /// Returns the state's digest after this entry, if a node has applied the entry.
    pub fn digest_behind(&self, entry: Position) -> Option<u64> {
        self.inner.lock().applied.get(&entry).copied()
    }

    /// Returns the last entry that a node has acknowledged to a leader.
    pub fn told(&self, node: NodeId) -> Index {
        self.inner.lock().told.get(&node).copied().unwrap_or_default()
    }

    fn trace_violation(&self, broken: Option<String>) {
        if let Some(text) = broken {
            self.sim.trace().record(self.sim.now(), || What::Violation { text });
        }
    }

    /// Reports a fact about a node.
    pub fn node(&self, node: NodeId, what: NodeFact) {
        let fact = Fact::Node { node, at: self.now(), what };
        {
            let mut inner = self.inner.lock();
            let Fact::Node { what, .. } = &fact else { return };
            if inner.restart.is_some_and(|restart| is_of_former_log(restart, node, what)) {
                return;
            }
            let is_of_log = matches!(
                what,
                NodeFact::Members { .. } | NodeFact::Appended { .. } | NodeFact::Acknowledged { .. }
            );
            if let Some(since) = inner.since_restart.as_mut().filter(|_| is_of_log) {
                since.push(fact.clone());
            }
        }
        self.report(&fact);
    }

    /// Reports a broken promise found by the run itself.
    pub fn break_promise(&self, invariant: &'static str, what: String) {
        let broken = self.inner.lock().break_promise(Violation { invariant, what });
        self.trace_violation(broken);
    }

    /// Returns the first broken promise.
    pub fn violation(&self) -> Option<Violation> {
        self.inner.lock().violation.clone()
    }

    pub fn is_broken(&self) -> bool {
        self.inner.lock().violation.is_some()
    }

    pub fn waits(&self, client: ClientId) -> bool {
        self.inner.lock().waiting.values().any(|who| *who == client)
    }

    /// Returns the newest change of voters, and the number of nodes with its first half in their logs.
    pub fn changing(&self) -> (Position, usize) {
        let inner = self.inner.lock();
        (inner.changing.0, inner.changing.1.len())
    }

    /// Returns the last committed membership, unless it is half of a change.
    pub fn members(&self) -> Option<Arc<Members>> {
        let inner = self.inner.lock();
        inner.committed.as_ref().map(|(_, members)| members.clone()).filter(|it| it.voters.len() == 1)
    }

    /// Returns the number of facts, of successful calls, and of locks granted by the log.
    pub fn counts(&self) -> (u64, u64, u64) {
        let inner = self.inner.lock();
        (inner.facts, inner.acknowledged, inner.grants)
    }

    pub fn model_events(&self) -> ModelEvents {
        self.inner.lock().invariants.model_events()
    }

    pub fn lateness(&self) -> Lateness {
        self.inner.lock().invariants.lateness()
    }

    pub fn journal(&self, client: ClientId) -> Journal {
        Journal { record: self.clone(), client }
    }
}

/// A client's handle for its facts.
#[derive(Clone)]
pub struct Journal {
    record: Record,
    client: ClientId,
}

impl Journal {
    /// Reports an action or an observation of the client, at this moment.
    pub fn record(&self, what: ClientFact) {
        self.record.report(&Fact::Client { client: self.client, at: self.record.now(), what });
    }

    /// Returns the address of the client's host.
    pub fn address(&self) -> Ipv4Addr {
        client_address(self.client)
    }

    /// Returns a unique number for a call.
    pub fn next_call(&self) -> CallId {
        let mut inner = self.record.inner.lock();
        inner.calls += 1;
        CallId(inner.calls)
    }

    /// Returns a unique number for a watch.
    pub fn next_watch(&self) -> WatchId {
        let mut inner = self.record.inner.lock();
        inner.watches += 1;
        WatchId(inner.watches)
    }

    /// Adds an event to the trace for the story and the diagram. The checkers do not see the event.
    pub fn trace(&self, what: impl FnOnce() -> What) {
        self.record.sim.trace().record(self.record.now(), what);
    }
}
