//! The world of a run: one log, its replicas, the connections, the clients, and the random numbers that
//! decide what happens next. One step is one small event; everything else waits.

mod cluster;
mod connection;
mod faults;

use std::collections::BTreeMap;

use rowlock_proto::{ErrorCode, FencingToken, NodeId};
use rowlock_state::Machine;
use rowlock_state::command::Proposal;

use crate::fact_recorder::FactRecorder;
use crate::history::{ConnectionId, Fact, Lock, Locks, Millis, Origin};
use crate::invariants::{Invariants, Violation};
use crate::state::client::{Act, Client, Kind, LOCKS, Moment, Style, lock_path};
use crate::state::leader::Leader;
use crate::state::log::Log;
use crate::state::mutant::Mutant;
use crate::state::node::Node;
use crate::state::stats::Stats;
use crate::state::trace::Trace;
use rowlock_world::rng::Rng;

use connection::Connection;

/// Steps in which all clients must finish once faults have ended. A hundred times what it usually takes.
const SETTLE_STEPS_MAX: u64 = 200_000;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Steps before the faults end.
    pub steps: u64,
    /// A deliberate mistake.
    pub mutant: Option<Mutant>,
    /// Write every step to standard output.
    pub print: bool,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of the trace: equal for equal plans.
    pub hash: u64,
    /// What happened how often.
    pub stats: Stats,
    /// The first broken promise.
    pub violation: Option<Violation>,
}

/// Runs a plan to its end or to the first broken promise.
pub fn run(plan: Plan) -> Outcome {
    let mut world = World::new(plan);
    let violation = world.run(plan.steps).err();
    if let Some(violation) = &violation {
        world.trace.line(format_args!("violation {violation}"));
    }
    Outcome { hash: world.trace.hash(), stats: world.stats, violation }
}

fn violation(invariant: &'static str, what: String) -> Violation {
    Violation { invariant, what }
}

type Step = Result<(), Violation>;

struct World {
    rng: Rng,
    now: Millis,
    settling: bool,
    mutant: Option<Mutant>,
    trace: Trace,
    invariants: Invariants,
    stats: Stats,
    log: Log,
    /// Has applied the whole log: what it answers is the truth of the log.
    reference: Machine,
    fact_recorder: FactRecorder,
    leader: Leader,
    /// What the leader's clock is ahead; another one's is ahead by something else, and time may go back.
    leader_offset_ms: i64,
    /// The cluster's own proposals, which may reach the log at any time.
    late: Vec<Proposal>,
    /// Commands that come again, long after the first time.
    duplicates: Vec<Proposal>,
    nodes: Vec<Node>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    clients: Vec<Client>,
    /// How much they want locks: where no client waits, lock-delays last alone and locks' znodes can be
    /// deleted.
    eager: usize,
    /// The highest token that the resource of each lock has seen.
    resources: BTreeMap<Lock, FencingToken>,
    /// Writes on their way to the resources.
    writes: Vec<(Lock, FencingToken)>,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let nodes = (1..=3 + 2 * rng.below(2) as u64).map(|id| Node::new(NodeId(id), plan.mutant)).collect();
        let number = 4 + rng.below(9);
        let clients = (0..number).map(|number| Client::new(number, kind(&mut rng), plan.mutant)).collect();
        let eager = rng.pick(&[50, 50, 50, 5]);
        let mut world = World {
            rng,
            now: Millis(0),
            settling: false,
            mutant: plan.mutant,
            trace: Trace::new(plan.print),
            invariants: Invariants::default(),
            stats: Stats::default(),
            log: Log::default(),
            reference: Machine::default(),
            fact_recorder: FactRecorder::new(Locks::at((0..=LOCKS).map(|lock| lock_path(Lock(lock))))),
            leader: Leader::new(plan.mutant),
            leader_offset_ms: 0,
            late: Vec::new(),
            duplicates: Vec::new(),
            nodes,
            connections: BTreeMap::new(),
            next_connection: 0,
            clients,
            eager,
            resources: BTreeMap::new(),
            writes: Vec::new(),
        };
        world.prepare();
        world
    }

    fn run(&mut self, steps: u64) -> Step {
        for _ in 0..steps {
            self.step()?;
        }
        self.settle()
    }

    fn step(&mut self) -> Step {
        self.stats.steps += 1;
        match self.rng.weighted(&[30, 25, 20, 25, 30, 15, 3, if self.settling { 0 } else { 2 }]) {
            0 => self.client_turn(),
            1 => self.deliver_up(),
            2 => self.append(),
            3 => self.apply(),
            4 => self.deliver_down(),
            5 => self.pass_time(),
            6 => self.deliver_write(),
            _ => self.fault(),
        }
    }

    /// Faults end; holders release, waiters must get their turns, and all replicas must agree.
    fn settle(&mut self) -> Step {
        self.settling = true;
        self.heal()?;
        let bound = self.stats.steps + SETTLE_STEPS_MAX;
        while self.stats.steps < bound && !self.clients.iter().all(Client::is_idle) {
            self.step()?;
        }
        self.tell(Fact::Settled)?;
        if let Some(client) = self.clients.iter().position(|client| !client.is_idle()) {
            return Err(violation("no-lost-wakeup", format!("client {client} never comes to its end")));
        }
        for session in self.clients.iter().filter_map(Client::session).collect::<Vec<_>>() {
            self.tell(Fact::Idle { session })?;
        }
        for node in 0..self.nodes.len() {
            while self.apply_next(node)? {}
        }
        self.check_reference()
    }

    /// A client does something of its own.
    fn client_turn(&mut self) -> Step {
        let index = self.rng.below(self.clients.len());
        if self.clients[index].paused_until > self.now {
            return Ok(());
        }
        let mut facts = Vec::new();
        let other = self.rng.below(self.clients.len());
        let above = if other == index { None } else { self.clients[other].held_place() };
        let mut moment = Moment {
            now: self.now,
            settling: self.settling,
            eager: self.eager,
            above,
            rng: &mut self.rng,
            facts: &mut facts,
        };
        let acts = self.clients[index].act(&mut moment);
        self.told_by_client(index, facts, acts)
    }

    /// What a client did, in its order: first what it believed, then what it sent.
    fn told_by_client(&mut self, index: usize, facts: Vec<Fact>, acts: Vec<Act>) -> Step {
        for fact in facts {
            self.tell(fact)?;
        }
        for act in acts {
            self.trace.line(format_args!("{} client {index} {act:?}", self.now.0));
            match act {
                Act::Connect(handshake) => self.connect(index, handshake),
                Act::Send(up) => self.send(index, up),
                Act::Disconnect => self.cut(index),
                Act::Write(lock, token) => self.writes.push((lock, token)),
            }
        }
        Ok(())
    }

    /// A write reaches the protected resource, in any order.
    fn deliver_write(&mut self) -> Step {
        if self.writes.is_empty() {
            return Ok(());
        }
        let (lock, token) = self.writes.swap_remove(self.rng.below(self.writes.len()));
        let highest = self.resources.entry(lock).or_default();
        if token < *highest && self.mutant != Some(Mutant::UnfencedResource) {
            self.stats.writes_fenced += 1;
            return Ok(());
        }
        *highest = token;
        self.stats.writes += 1;
        self.tell(Fact::ResourceWritten { lock, token })
    }

    fn pass_time(&mut self) -> Step {
        self.now.0 += 1 + self.rng.below(20) as i64;
        for (session, attachment) in self.leader.decide(self.now) {
            self.stats.expiries_decided += 1;
            self.late.push(cluster::expire(session, attachment));
        }
        self.sweep_locks();
        Ok(())
    }

    fn tell(&mut self, fact: Fact) -> Step {
        match fact {
            Fact::Granted { .. } => self.stats.grants += 1,
            Fact::Woken { .. } => self.stats.wakes += 1,
            Fact::Pushed { .. } => self.stats.notices += 1,
            Fact::Delayed { .. } => self.stats.delays += 1,
            Fact::Undelayed { .. } => self.stats.deleted_in_delay += 1,
            Fact::Once { ref reply, .. } if reply.refused == Some(ErrorCode::ThrottledOp) => {
                self.stats.throttled += 1;
            }
            _ => {}
        }
        // A digest per replica and entry would drown everything else.
        if !matches!(fact, Fact::Replica { origin: Origin::Apply, .. }) {
            self.trace.line(format_args!("{} {fact:?}", self.now.0));
        }
        self.invariants.observe(&fact)
    }
}

/// Half of the clients follow the recipe, half acquire.
fn kind(rng: &mut Rng) -> Kind {
    if rng.chance(50) {
        return Kind::Recipe;
    }
    let tagged = rng.chance(70);
    Kind::Acquirer(Style { tagged, hoards: tagged && rng.chance(10) })
}

#[cfg(test)]
mod tests;
