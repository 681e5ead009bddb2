//! One run, from its seed to its verdict: faults under load, then healing and a demand for progress, then the
//! audit.

use std::net::Ipv4Addr;
use std::time::Duration;

use rowlock_env::choice;
use rowlock_env::guard::Outcomes;
use rowlock_env::mutant::{self, Mistake};
use rowlock_env::rare::{Counts, Rare};
use rowlock_env::sync::watch;
use rowlock_world::executor::{Halt, Simulation, USUAL_SPEED};
use rowlock_world::rng::Rng;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, What};
use tokio::sync::mpsc::UnboundedReceiver;

use super::connected::{PROBED_AFTER, Watcher};
use super::flood;
use super::injector::{Birth, FaultTargets, Injector};
use super::membership::{Membership, Part};
use super::node;
use super::node_statuses::{NodeStatuses, Process, node_id};
use super::operator::{Job, Operator, OperatorQueue};
use super::probe::Probes;
use super::record::{Record, client_address};
use super::releases::Releases;
use super::revenant::ReturnedNode;
use super::scenario::Scenario;
use super::shape::{Shape, choices_of};
use super::stats::Stats;
use super::terms::{owes_service, terms};
use super::witness::Witness;
use super::workload::{self, Profile, Theme};
use crate::fault::{Kind, Script};
use crate::history::Fact;
use crate::history::client::{ClientFact, ClientId};
use crate::history::node::{Down, NodeFact};
use crate::invariants::Violation;

#[derive(Clone, Debug)]
pub struct Plan {
    /// Determines the whole run.
    pub seed: u64,
    /// Simulated seconds under load and faults; the end of the run takes longer.
    pub seconds: u64,
    pub scenario: Scenario,
    /// Faults; `None`: derived from the seed and the scenario.
    pub script: Option<Script>,
    /// Deliberate mistake in the nodes or clients (needs the feature `mutants`).
    pub mutant: Option<Mistake>,
    /// Whether to keep the trace for the story.
    pub record: bool,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub stats: Stats,
    /// Fingerprint of all events.
    pub fingerprint: u64,
    /// Rare branches taken by the run, with the time of their first detection, to a second.
    pub rare_since: Vec<(Rare, Nanos)>,
    pub script: Script,
    pub record: Vec<Happening>,
    pub end: Nanos,
}

/// Time limit for nodes and clients to recover after the last fault.
pub(super) const RECOVERY: Duration = Duration::from_secs(20);
/// Time limit for clients to finish their work.
const CLOSING: Duration = Duration::from_secs(30);
/// Exceeds every lease: remains of clients are gone afterwards.
const AUDIT: Duration = Duration::from_secs(8);
pub(super) const SPARES: usize = 3;
pub(crate) const CLIENTS: usize = 4;
const TICK: Duration = Duration::from_secs(1);

/// Hosts for simultaneous floods.
const FLOODERS: u8 = 3;
/// Number of quiet clients beside floods.
const BYSTANDERS: usize = 3;

/// Adds the host of quiet clients and the flooders' hosts, if the script has floods.
fn beside_floods(sim: &Simulation, script: &Script) -> (Option<HostId>, Vec<HostId>) {
    if !script.steps().iter().any(|step| step.fault.kind() == Kind::Flood) {
        return (None, Vec::new());
    }
    let bystander = sim.add_host("bystander", "client", Ipv4Addr::new(10, 0, 4, 1));
    let flooder = |n| {
        let host = sim.add_host(&format!("flooder{n}"), "client", Ipv4Addr::new(10, 0, 3, n));
        sim.network().set_window_of(host, flood::WINDOW_BYTES);
        sim.set_speed(host, 4 * USUAL_SPEED);
        host
    };
    (Some(bystander), (1..=FLOODERS).map(flooder).collect())
}

fn profiles(rng: &mut Rng, theme: &Theme, clients: &[HostId], loses_sessions: bool) -> Vec<Profile> {
    let profiles = clients.iter().map(|host| Profile::of(rng, theme, *host));
    match loses_sessions {
        true => profiles.map(Profile::without_states).collect(),
        false => profiles.collect(),
    }
}

/// Returns the random stream of the clients' workload. The script has no influence on this stream.
pub(super) fn theme_stream(seed: u64) -> Rng {
    Rng::new(seed ^ 0x006c_6f63_6b73)
}

pub fn run(plan: &Plan) -> Outcome {
    let _mistake = mutant::with(plan.mutant);
    #[cfg(feature = "mutants")]
    rowlock_state::mutant::choose(plan.mutant.map(Mistake::name));
    #[cfg(any(debug_assertions, feature = "mutants"))]
    rowlock_state::guard::decide_by(rowlock_env::guard::decide);
    let _choices = choice::enable(choices_of(plan.seed));
    let _before = (Counts::take(), Outcomes::take());
    let mut run = Run::new(plan);
    let halt = run.all().err();
    // The teardown of a halted world may fail as well; the first finding counts.
    let halt = halt.or(run.sim.end_of_world().err());
    let violation = run.record.violation().or(halt.map(|halt| halt_violation(&halt)));
    let (facts, acknowledged, grants) = run.record.counts();
    let end = run.sim.now();
    let mut stats = Stats {
        runs: 1,
        simulated: end,
        polls: run.sim.polls(),
        facts,
        acknowledged,
        grants,
        lateness: run.record.lateness(),
        model_events: run.record.model_events(),
        rare: Counts::take(),
        guards: Outcomes::take(),
        ..Stats::default()
    };
    for step in run.script.steps() {
        *stats.faults.entry(step.fault.kind()).or_default() += 1;
    }
    let (record, _) = run.sim.trace().take();
    let (fingerprint, rare_since) = (run.sim.trace().fingerprint(), run.rare_since);
    Outcome { violation, stats, fingerprint, rare_since, script: run.script, record, end }
}

fn halt_violation(halt: &Halt) -> Violation {
    let invariant = match halt {
        Halt::Panic { .. } => "no-panic",
        Halt::Livelock { .. } => "no-livelock",
    };
    Violation { invariant, what: halt.to_string() }
}

/// Reason to end the run: a broken promise, or a world without progress.
pub(super) enum Stop {
    Broken,
    Halt(Halt),
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Self {
        Stop::Halt(halt)
    }
}

pub(super) struct Run {
    pub(super) sim: Simulation,
    pub(super) script: Script,
    pub(super) shape: Shape,
    releases: Releases,
    pub(super) nodes: Vec<HostId>,
    pub(super) clients: Vec<HostId>,
    pub(super) operator: HostId,
    /// Host of the quiet clients beside floods.
    pub(super) bystander: Option<HostId>,
    profiles: Vec<Profile>,
    clients_live: Vec<bool>,
    pub(super) statuses: NodeStatuses,
    pub(super) membership: Membership,
    pub(super) queue: OperatorQueue,
    jobs: Option<UnboundedReceiver<Job>>,
    pub(super) record: Record,
    pub(super) injector: Injector,
    pub(super) watcher: Watcher,
    /// Probes during faults, in scenarios that send probes.
    probes: Option<Probes>,
    closing: watch::Sender<bool>,
    load_ends: Nanos,
    rare_since: Vec<(Rare, Nanos)>,
}

impl Run {
    fn new(plan: &Plan) -> Run {
        let sim = Simulation::new(plan.seed, plan.record);
        sim.network().set_labeler(crate::report::label::label);
        let mut rng = theme_stream(plan.seed);
        let shape = Shape::of_run(plan.seed, plan.scenario);
        // Spare machines for added members come after the first members.
        let nodes: Vec<HostId> = (0..shape.nodes() + SPARES)
            .map(|place| sim.add_host(&format!("node{}", place + 1), "node", node::address(place)))
            .collect();
        let membership = Membership::new(&shape, SPARES);
        let theme = Theme::of(&mut rng, membership.clone()).with_only_locks(shape.has_only_locks);
        let theme = theme.with_tokens(shape.asks_tokens);
        let clients: Vec<HostId> = (0..CLIENTS)
            .map(|n| sim.add_host(&format!("client{}", n + 1), "client", client_address(ClientId(n))))
            .collect();
        let statuses = NodeStatuses::new(nodes.len());
        let load_ends = Nanos::from_millis(plan.seconds * 1_000);
        let made = || plan.scenario.script(plan.seed, plan.seconds, &shape, clients.len());
        let script = plan.script.clone().unwrap_or_else(made);
        let shape = Shape { autopilot: shape.autopilot.filter(|_| !script.is_reborn()), ..shape };
        let loses_sessions = script.is_reborn() || shape.flush_within_ms.is_some();
        let profiles = profiles(&mut rng, &theme, &clients, loses_sessions);
        let record = Record::new(sim.clone(), theme.locks().clone(), terms(&script, &shape));
        let operator = sim.add_host("operator", "operator", Ipv4Addr::new(10, 0, 2, 1));
        let (bystander, flooders) = beside_floods(&sim, &script);
        let (queue, jobs) = OperatorQueue::new();
        let targets = FaultTargets {
            nodes: nodes.clone(),
            clients: clients.clone(),
            operator,
            flooders,
            statuses: statuses.clone(),
            membership: membership.clone(),
            queue: queue.clone(),
            record: record.clone(),
        };
        let injector = Injector::new(sim.clone(), targets, &script);
        let hosts = (nodes.clone(), clients.clone());
        let watcher = Watcher::new(sim.clone(), hosts, statuses.clone(), membership.clone(), queue.clone());
        let watcher = watcher.of(shape.autopilot, !owes_service(&script));
        let probes = || Probes::new(sim.clone(), operator, record.clone(), membership.clone());
        let probes = (plan.scenario.sends_probes() && shape.flush_within_ms.is_none()).then(probes);
        let releases = Releases::of_run(plan.seed, plan.seconds, loses_sessions);
        let (clients_live, jobs, rare_since) = (vec![false; clients.len()], Some(jobs), Vec::new());
        Run {
            sim,
            shape,
            script,
            releases,
            nodes,
            clients,
            operator,
            bystander,
            profiles,
            clients_live,
            statuses,
            membership,
            queue,
            jobs,
            record,
            injector,
            watcher,
            probes,
            closing: watch::channel(false).0,
            load_ends,
            rare_since,
        }
    }

    fn all(&mut self) -> Result<(), Halt> {
        match self.phases() {
            Ok(()) | Err(Stop::Broken) => Ok(()),
            Err(Stop::Halt(halt)) => Err(halt),
        }
    }

    fn phases(&mut self) -> Result<(), Stop> {
        (0..self.shape.nodes()).for_each(|place| self.start_node(place));
        (0..self.clients.len()).for_each(|place| self.start_client(place));
        self.start_operator();
        self.start_bystanders();
        let faults_end = self.script.healed_at().max(self.load_ends);
        self.pass_until(faults_end)?;
        self.probes = None;
        for birth in self.injector.heal()? {
            self.start(birth);
        }
        self.sim.network().heal_links();
        self.record.report(&Fact::Healed { at: self.sim.now() });
        self.pass_until(self.sim.now() + RECOVERY)?;
        self.closing.send(true);
        let mut people = self.clients.clone();
        people.extend([self.operator].into_iter().chain(self.bystander));
        let sim = self.sim.clone();
        self.pass_until_or(self.sim.now() + CLOSING, move || {
            people.iter().all(|host| sim.tasks_of(*host).is_empty())
        })?;
        self.pass_until(self.sim.now() + AUDIT)?;
        self.audit();
        self.stop_in_order()
    }

    /// Lets time pass, with faults as they are due.
    fn pass_until(&mut self, until: Nanos) -> Result<(), Stop> {
        self.pass_until_or(until, || false)
    }

    fn pass_until_or(&mut self, until: Nanos, mut done: impl FnMut() -> bool) -> Result<(), Stop> {
        let mut tick = self.sim.now() + TICK;
        loop {
            for birth in self.injector.act()? {
                self.start(birth);
            }
            self.observe_world();
            let next = self.injector.next().unwrap_or(until).min(until).min(tick);
            let (record, statuses, dying) =
                (self.record.clone(), self.statuses.clone(), self.injector.dying());
            let is_time_to_die = || dying.iter().any(|client| record.waits(ClientId(*client)));
            let deposes = self.injector.deposes();
            let (armed, sim) = (self.injector.armed(), self.sim.clone());
            let has_gone = || armed.iter().any(|host| !sim.is_up(*host));
            let is_news =
                || record.is_broken() || statuses.has_news() || is_time_to_die() || deposes() || has_gone();
            self.sim.run_until_or(next, is_news)?;
            if self.record.is_broken() {
                return Err(Stop::Broken);
            }
            for client in dying.into_iter().filter(|client| self.record.waits(ClientId(*client))) {
                self.injector.die_waiting(client)?;
            }
            self.injector.depose()?;
            self.follow_autopilot();
            self.clear_ended_processes()?;
            self.injector.notice_cuts();
            self.observe_world();
            self.record_rare_branches();
            if self.sim.now() >= tick {
                self.record.report(&Fact::Passed { at: self.sim.now() });
                if let (Some(probes), Some(owed)) = (&mut self.probes, self.watcher.due(PROBED_AFTER)) {
                    probes.send(&owed);
                }
                self.demand_service();
                tick = self.sim.now() + TICK;
            }
            if self.sim.now() >= until || done() {
                return Ok(());
            }
        }
    }

    fn record_rare_branches(&mut self) {
        let (now, taken) = (self.sim.now(), Counts::so_far());
        let is_known = |branch: &Rare| self.rare_since.iter().any(|(known, _)| known == branch);
        let news = Rare::ALL.iter().filter(|branch| taken.of(**branch) > 0 && !is_known(branch));
        let news: Vec<(Rare, Nanos)> = news.map(|branch| (*branch, now)).collect();
        self.rare_since.extend(news);
    }

    /// Reports the service that the world allows, after each possible change.
    fn observe_world(&mut self) {
        if let Some(changed) = self.watcher.observe(self.injector.resets()) {
            self.record.report(&changed);
        }
    }

    /// Clears away processes that ended by themselves or by a power loss.
    fn clear_ended_processes(&mut self) -> Result<(), Halt> {
        self.miss_clients();
        for (place, process) in self.statuses.processes().into_iter().enumerate() {
            let is_up = self.sim.is_up(self.nodes[place]);
            // A disk without power fails its callers before the simulation reports the machine as off.
            let lost_power = !is_up && self.sim.last_end(self.nodes[place]) == "power lost";
            match process {
                Process::Failed { why, differs } if !lost_power => {
                    let text = format!("the node has stopped by itself: {why}");
                    let host = Some(self.nodes[place]);
                    // A damaged or lossy disk excuses a node's stop, but no fault excuses a differing state.
                    if differs || !self.injector.excuses(place) {
                        self.record
                            .break_promise("stops-with-cause", format!("node {}: {text}", node_id(place)));
                    }
                    self.sim.trace().record(self.sim.now(), || What::Note { host, text });
                    self.statuses.end(place, Process::Down);
                    self.record.node(node_id(place), NodeFact::Ended { how: Down::Failed });
                    // A fault that has killed the process since then restarts it as well.
                    if is_up {
                        self.injector.clear_away(place)?;
                    }
                }
                Process::Stopped => {
                    self.statuses.end(place, Process::Down);
                    self.record.node(node_id(place), NodeFact::Ended { how: Down::Stopped });
                    self.sim.stop(self.nodes[place])?;
                }
                Process::Restarting | Process::LeftBehind if is_up => {
                    self.statuses.end(place, Process::Down);
                    self.record.node(node_id(place), NodeFact::Ended { how: Down::Stopped });
                    self.injector.clear_away(place)?;
                }
                Process::Up | Process::Restarting | Process::LeftBehind | Process::Failed { .. }
                    if !is_up =>
                {
                    self.statuses.end(place, Process::Down);
                    let how = if lost_power { Down::PowerLost } else { Down::Killed };
                    self.record.node(node_id(place), NodeFact::Ended { how });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reports clients whose processes have ended.
    fn miss_clients(&mut self) {
        for (place, lives) in self.clients_live.iter_mut().enumerate() {
            if *lives && !self.sim.is_up(self.clients[place]) {
                *lives = false;
                let (client, at) = (ClientId(place), self.sim.now());
                self.record.report(&Fact::Client { client, at, what: ClientFact::Ended });
            }
        }
    }

    fn start(&mut self, birth: Birth) {
        self.miss_clients();
        match birth {
            Birth::Node(place) => self.start_node(place),
            Birth::ReturnedNode(place) => self.start_returned_node(place),
            Birth::Client(place) => self.start_client(place),
        }
    }

    fn start_node(&mut self, place: usize) {
        let (sim, host, node) = (self.sim.clone(), self.nodes[place], node_id(place));
        sim.boot(host);
        self.record.node(node, NodeFact::Started);
        let orders = self.statuses.begin(place);
        let record = self.record.clone();
        let witness = std::sync::Arc::new(Witness { sim, host, node, record });
        let mut known = self.membership.known();
        known.retain(|other| *other != place);
        known.push(place);
        known.sort_unstable();
        let mut config = node::config(&self.shape, place, &known, |place| self.membership.is_founder(place));
        config.peer_addr = self.membership.peer_addr(place);
        self.shape.choose_mode(&mut config.locks, self.sim.now(), place);
        for (member, place) in config.nodes.iter_mut().zip(&known) {
            member.peer_addr = self.membership.peer_addr(*place);
        }
        let is_member = matches!(self.membership.part(node), Part::Voter | Part::Learner);
        if let Some(text) = self.releases.choose(self.sim.now(), is_member, &mut config) {
            self.sim.trace().record(self.sim.now(), || What::Note { host: Some(host), text });
            self.statuses.set_upgraded(place, self.releases.are_new_for_good(self.sim.now()));
        }
        let process = node::process(config, witness, (self.statuses.clone(), place), orders);
        self.sim.spawn(host, "process", process);
    }

    /// Starts a node of the old cluster with its old disk and its old configuration. The run ignores the
    /// status of this node.
    fn start_returned_node(&self, place: usize) {
        let (sim, host) = (self.sim.clone(), self.nodes[place]);
        sim.boot(host);
        let added = Some(place).filter(|place| *place >= self.shape.nodes());
        let known: Vec<usize> = (0..self.shape.nodes()).chain(added).collect();
        let config = node::config(&self.shape, place, &known, |place| place < self.shape.voters);
        let statuses = NodeStatuses::new(self.nodes.len());
        let orders = statuses.begin(place);
        let hook = std::sync::Arc::new(ReturnedNode::new(node_id(place), self.record.clone()));
        sim.spawn(host, "process", node::process(config, hook, (statuses, place), orders));
    }

    fn start_operator(&mut self) {
        let Some(jobs) = self.jobs.take() else { return };
        let (sim, host, membership) = (self.sim.clone(), self.operator, self.membership.clone());
        let (statuses, queue) = (self.statuses.clone(), self.queue.clone());
        let operator = Operator { sim: sim.clone(), host, membership, statuses, queue };
        sim.boot(host);
        if let Some(hold) = self.releases.hold() {
            let holding = operator.clone().hold(hold, self.record.clone(), self.closing.subscribe());
            sim.spawn(host, "hold", holding);
        }
        sim.spawn(host, "operator", operator.work(jobs, self.closing.subscribe()));
    }

    /// Starts the quiet clients, numbered after all other clients.
    fn start_bystanders(&self) {
        let Some(host) = self.bystander else { return };
        self.sim.boot(host);
        for number in 0..BYSTANDERS {
            let journal = self.record.journal(ClientId(self.clients.len() + number));
            let closing = self.closing.subscribe();
            let life = workload::run_bystander(journal, self.membership.clone(), closing);
            self.sim.spawn(host, "bystander", life);
        }
    }

    fn start_client(&mut self, place: usize) {
        let host = self.clients[place];
        self.sim.boot(host);
        self.clients_live[place] = true;
        let journal = self.record.journal(ClientId(place));
        let life = workload::live(self.profiles[place].clone(), journal, self.closing.subscribe());
        self.sim.spawn(host, "process", life);
    }
}
