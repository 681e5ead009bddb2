//! Applies the script's faults to the world, and ends them.

mod data;
mod disk;
mod load;
mod rebirth;
mod regain;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_world::clock::TRUE_RATE;
use rowlock_world::disk::DiskCopy;
use rowlock_world::executor::{Halt, Simulation};
use rowlock_world::network::Delay;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::What;

use self::data::Rest;
use self::disk::Armed;
use self::rebirth::Rebirth;
use self::regain::Regain;
use super::cuts::{Cuts, Distrusts, Link, between, one_way};
use super::membership::Membership;
use super::node_statuses::{NodeStatuses, Order, node_id};
use super::operator::{Job, OperatorQueue};
use super::rebirth::Shelf;
use super::record::Record;
use super::schedule::Schedule;
use crate::fault::{CrashPoint, Down, Fault, Script, Target};
use crate::history::node::{NodeFact, Position};

/// Processes and hosts that faults act on.
pub struct FaultTargets {
    pub nodes: Vec<HostId>,
    pub clients: Vec<HostId>,
    pub operator: HostId,
    pub flooders: Vec<HostId>,
    pub statuses: NodeStatuses,
    pub membership: Membership,
    pub queue: OperatorQueue,
    pub record: Record,
}

/// Process for the run to start. The run knows the code of each process, the injector does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    Node(usize),
    /// A node of the old cluster at this place, which was thought lost.
    ReturnedNode(usize),
    Client(usize),
}

enum Deed {
    Begin(Fault),
    End(End),
}

enum End {
    Join(Vec<Link>),
    /// Restores a cut link and resets its connections, so that hosts open new ones.
    JoinAndReset(Vec<Link>),
    Unclog(Vec<Link>),
    Unlose(Vec<Link>),
    /// Restores trust between the hosts of these links.
    Trust(Vec<Link>),
    Start(Birth),
    Resume(HostId),
    TrueRate(HostId),
    FastDisk(HostId),
    Room(HostId),
    /// Cuts the power now unless the armed moment has come.
    CutPower(usize),
    /// Restarts the node at this place with an older copy of its disk.
    RestoreCopy(usize, DiskCopy),
    /// Advances the fault in which an isolated leader regains its leadership.
    Regain(Regain),
    /// Kills all nodes, to restart them from this backup after the duration.
    StopAll(Shelf, Duration),
    /// Advances the making of a new cluster's data folders.
    Rebuild(Rebirth),
    /// Checks whether the log of an isolated node is at rest.
    Rest(Rest),
    Ebb(HostId),
    FullSpeed(HostId),
}

pub struct Injector {
    sim: Simulation,
    targets: FaultTargets,
    schedule: Schedule<Deed>,
    cuts: Cuts,
    distrusts: Distrusts,
    /// Clients to kill as soon as they wait for a lock, with their downtime.
    dying: Vec<(usize, Down)>,
    /// Losses of the leader of a change of voters that is newer than this one.
    deposing: Vec<(Position, Fault)>,
    paused: BTreeMap<HostId, Nanos>,
    /// Nodes that lose power at a certain moment, by place.
    armed: BTreeMap<usize, Armed>,
    /// Nodes, by place, that stop in order to move to another address.
    moving: Vec<usize>,
    /// Downtime of a node that failed by itself, by place.
    restart_after: Vec<Duration>,
    /// Whether a new cluster is being made. No node may start meanwhile.
    is_reborn_now: bool,
    /// Number of new clusters so far.
    rebirths: u32,
    /// Nodes, by place, that may stop by themselves: a fault damaged the disk, or the operator removed the
    /// node.
    excused: BTreeSet<usize>,
    /// Number of faults so far that broke connections of a host and left its links.
    resets: BTreeMap<HostId, u64>,
    /// Original speed of slowed processors.
    speeds: BTreeMap<HostId, u32>,
}

/// Disk capacity beyond the need of any run.
const ROOM_BYTES: u64 = 1 << 40;
/// Delay after which a supervisor restarts a failed process.
const SUPERVISOR: Duration = Duration::from_secs(2);

impl Injector {
    /// Schedules the steps of `script`.
    pub fn new(sim: Simulation, targets: FaultTargets, script: &Script) -> Self {
        let mut schedule = Schedule::new();
        for step in script.steps() {
            schedule.add(step.at, Deed::Begin(step.fault.clone()));
        }
        let restart_after = vec![SUPERVISOR; targets.nodes.len()];
        let (cuts, distrusts) = (Cuts::default(), Distrusts::default());
        let (dying, deposing, excused) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (paused, armed) = (BTreeMap::new(), BTreeMap::new());
        let (is_reborn_now, rebirths) = (false, 0);
        Injector {
            sim,
            targets,
            schedule,
            cuts,
            distrusts,
            dying,
            deposing,
            paused,
            armed,
            moving: Vec::new(),
            restart_after,
            is_reborn_now,
            rebirths,
            excused,
            resets: BTreeMap::new(),
            speeds: BTreeMap::new(),
        }
    }

    /// Returns the number of faults so far, by host, that broke connections of the host and left its links.
    pub fn resets(&self) -> &BTreeMap<HostId, u64> {
        &self.resets
    }

    /// Returns whether a fault gave the node at this place a cause to stop by itself.
    pub fn excuses(&self, place: usize) -> bool {
        self.excused.contains(&place)
    }

    /// Lets the node at this place stop by itself: it was removed.
    pub fn excuse(&mut self, place: usize) {
        self.excused.insert(place);
    }

    /// Returns the time of the next step.
    pub fn next(&self) -> Option<Nanos> {
        self.schedule.next()
    }

    /// Returns clients to kill when they wait for a lock, by place.
    pub fn dying(&self) -> Vec<usize> {
        self.dying.iter().map(|(client, _)| *client).collect()
    }

    /// Executes all steps that are due. Returns the processes to start.
    pub fn act(&mut self) -> Result<Vec<Birth>, Halt> {
        for moved in self.moving.extract_if(.., |place| !self.sim.is_up(self.targets.nodes[*place])) {
            self.targets.queue.enqueue(Job::Address(moved));
        }
        let mut births = Vec::new();
        while let Some(deed) = self.schedule.take_due(self.sim.now()) {
            match deed {
                Deed::Begin(fault) => {
                    let (text, hosts) = (fault.to_string(), self.concerned(&fault));
                    if matches!(fault, Fault::Reset { .. } | Fault::Disconnect { .. }) {
                        hosts.iter().for_each(|host| *self.resets.entry(*host).or_default() += 1);
                    }
                    self.sim.trace().record(self.sim.now(), || What::Fault { text, hosts });
                    self.begin(fault)?;
                }
                Deed::End(end) => add(&mut births, self.end(end)?),
            }
        }
        Ok(births)
    }

    /// Stops the remains of a node whose process has ended by itself, and schedules a restart.
    pub fn clear_away(&mut self, place: usize) -> Result<(), Halt> {
        self.sim.stop(self.targets.nodes[place])?;
        let restart_after = std::mem::replace(&mut self.restart_after[place], SUPERVISOR);
        self.start_later(Birth::Node(place), Down::For(restart_after));
        Ok(())
    }

    /// Kills the waiting client at this place if a fault demands its death.
    pub fn die_waiting(&mut self, client: usize) -> Result<(), Halt> {
        let due: Vec<Down> =
            self.dying.iter().filter(|(who, _)| *who == client).map(|(_, down)| *down).collect();
        self.dying.retain(|(who, _)| *who != client);
        match due.first() {
            Some(down) => self.kill_client(client, *down),
            None => Ok(()),
        }
    }

    fn kill_client(&mut self, client: usize, down: Down) -> Result<(), Halt> {
        self.sim.kill(self.targets.clients[client])?;
        self.start_later(Birth::Client(client), down);
        Ok(())
    }

    /// Ends all faults that can end, at once. Returns the processes to start.
    pub fn heal(&mut self) -> Result<Vec<Birth>, Halt> {
        self.dying.clear();
        self.deposing.clear();
        self.notice_cuts();
        let (mut births, mut rebuilt) = (Vec::new(), Vec::new());
        while let Some(next) = self.schedule.next() {
            match self.schedule.take_due(next) {
                Some(
                    Deed::End(End::CutPower(_) | End::RestoreCopy(..) | End::StopAll(..)) | Deed::Begin(_),
                )
                | None => {}
                Some(Deed::End(End::Start(Birth::ReturnedNode(_)))) => {}
                Some(Deed::End(End::Rebuild(rebirth))) => rebuilt.push(rebirth),
                Some(Deed::End(End::Regain(regain))) => self.reconnect(&regain),
                Some(Deed::End(End::Rest(rest))) => self.leave(&rest),
                Some(Deed::End(end)) => add(&mut births, self.end(end)?),
            }
        }
        self.end_returned_nodes()?;
        rebuilt.into_iter().for_each(|rebirth| self.later(Duration::ZERO, End::Rebuild(rebirth)));
        Ok(births)
    }

    fn later(&mut self, lasts: Duration, end: End) {
        self.schedule.add(self.sim.now() + lasts, Deed::End(end));
    }

    fn start_later(&mut self, who: Birth, down: Down) {
        match (down, who) {
            (Down::For(lasts), _) => self.later(lasts, End::Start(who)),
            (Down::ForGood, Birth::Node(place)) => self.targets.membership.lose(place),
            (Down::ForGood, Birth::Client(_) | Birth::ReturnedNode(_)) => {}
        }
    }

    fn end(&mut self, end: End) -> Result<Option<Birth>, Halt> {
        let network = self.sim.network().clone();
        match end {
            End::Join(links) => self.cuts.join(&network, &links),
            End::JoinAndReset(links) => {
                self.cuts.join(&network, &links);
                for (from, to) in links {
                    network.reset_between(from, to);
                }
            }
            End::Unclog(links) => {
                links.iter().for_each(|(from, to)| network.set_delay(*from, *to, Delay::NONE))
            }
            End::Unlose(links) => links.iter().for_each(|(from, to)| network.lose_segments(*from, *to, 0)),
            End::Trust(links) => self.distrusts.end(&network, &links),
            End::Start(who) => return Ok(self.may_start(who).then_some(who)),
            End::Resume(host) => self.resume(host),
            End::TrueRate(host) => self.sim.set_clock_rate(host, TRUE_RATE),
            End::FastDisk(host) => self.sim.disk(host).set_pace(1),
            End::Ebb(host) => self.sim.kill(host)?,
            End::FullSpeed(host) => self.speed_up(host),
            End::Room(host) => self.sim.disk(host).set_capacity(ROOM_BYTES),
            End::CutPower(place) => {
                if let Some(armed) = self.armed.remove(&place) {
                    self.power_off(place, armed.down)?;
                }
            }
            End::RestoreCopy(place, copy) => self.restore_copy(place, copy)?,
            End::Regain(regain) => self.go_on(regain),
            End::StopAll(shelf, lasts) => self.stop_all(&shelf, lasts)?,
            End::Rebuild(rebirth) => self.go_on_rebuilding(rebirth)?,
            End::Rest(rest) => self.check_rest(rest)?,
        }
        Ok(None)
    }

    fn may_start(&self, who: Birth) -> bool {
        let host = match who {
            Birth::Node(_) | Birth::ReturnedNode(_) if self.is_reborn_now => return false,
            Birth::Node(place) if !self.targets.membership.is_in_use(place) => return false,
            Birth::Node(place) | Birth::ReturnedNode(place) => self.targets.nodes[place],
            Birth::Client(place) => self.targets.clients[place],
        };
        !self.sim.is_up(host)
    }

    fn begin(&mut self, fault: Fault) -> Result<(), Halt> {
        let network = self.sim.network().clone();
        match fault {
            Fault::Partition { groups, lasts } => {
                let groups: Vec<Vec<HostId>> = groups.iter().map(|group| self.hosts(group)).collect();
                let mut links = Vec::new();
                for (at, left) in groups.iter().enumerate() {
                    groups[at + 1..].iter().for_each(|right| links.extend(between(left, right)));
                }
                self.cut(links, lasts);
            }
            Fault::OneWay { from, to, lasts } => {
                self.cut(one_way(&self.hosts(&from), &self.hosts(&to)), lasts)
            }
            Fault::Bridge { left, right, lasts, .. } => {
                self.cut(between(&self.hosts(&left), &self.hosts(&right)), lasts);
            }
            Fault::Isolate { target, lasts } => {
                let links = self.to_other_nodes(target);
                self.cut(links, lasts);
            }
            Fault::FallBehind { target, lasts } => {
                let links = self.to_other_nodes(target);
                self.cuts.cut(self.sim.network(), &links);
                self.later(lasts, End::JoinAndReset(links));
            }
            Fault::Clog { from, to, least, most, lasts } => {
                let links = one_way(&self.hosts(&from), &self.hosts(&to));
                for (from, to) in &links {
                    network.set_delay(*from, *to, Delay::between(least, most));
                }
                self.later(lasts, End::Unclog(links));
            }
            Fault::Lose { from, to, percent, lasts } => {
                let links = one_way(&self.hosts(&from), &self.hosts(&to));
                for (from, to) in &links {
                    network.lose_segments(*from, *to, u32::from(percent) * 10);
                }
                self.later(lasts, End::Unlose(links));
            }
            Fault::Distrust { from, to, lasts } => {
                let links = between(&self.hosts(&from), &self.hosts(&to));
                self.distrusts.begin(&network, &links);
                self.later(lasts, End::Trust(links));
            }
            Fault::Reset { from, to } => {
                for (from, to) in one_way(&self.hosts(&from), &self.hosts(&to)) {
                    network.reset_between(from, to);
                }
            }
            Fault::Disconnect { client } => {
                network.reset_all(self.targets.clients[client - 1]);
            }
            load @ (Fault::Flood { .. } | Fault::SlowProcessor { .. }) => self.begin_load(load),
            other => self.begin_on_machine(other)?,
        }
        Ok(())
    }

    fn begin_on_machine(&mut self, fault: Fault) -> Result<(), Halt> {
        match fault {
            Fault::Kill { target, down } => {
                for who in self.processes(target) {
                    self.sim.kill(self.host(who))?;
                    self.start_later(who, down);
                }
            }
            Fault::PowerLoss { target, point, down } => {
                for place in self.places(target) {
                    match point {
                        CrashPoint::AtOnce => self.power_off(place, down)?,
                        CrashPoint::At(moment, nth) => self.arm(place, moment, u64::from(nth), down),
                    }
                }
            }
            Fault::Pause { target, lasts } => {
                for host in self.hosts(&[target]) {
                    if !self.sim.is_paused(host) {
                        self.paused.insert(host, self.sim.now());
                    }
                    self.sim.pause(host);
                    self.later(lasts, End::Resume(host));
                }
            }
            Fault::ClockRate { target, ppm, lasts } => {
                let rate = TRUE_RATE.saturating_add_signed(ppm).max(1);
                for host in self.hosts(&[target]) {
                    self.sim.set_clock_rate(host, rate);
                    self.later(lasts, End::TrueRate(host));
                }
            }
            Fault::ClockJump { target, by_ms } => {
                self.hosts(&[target]).into_iter().for_each(|host| self.sim.jump_wall_clock(host, by_ms));
            }
            Fault::NewChoices { seed } => self.sim.reseed(seed),
            depose @ Fault::Depose { .. } => {
                self.deposing.push((self.targets.record.changing().0, depose));
            }
            Fault::DieWaiting { client, down } => self.dying.push((client - 1, down)),
            Fault::EndRuntime { client } => {
                self.sim.end_runtime(self.targets.clients[client - 1], "rowlock-session")?;
            }
            Fault::ReturnFromMain { client, down } => {
                self.sim.return_from_main(self.targets.clients[client - 1])?;
                self.start_later(Birth::Client(client - 1), down);
            }
            Fault::Regain { late, after, lasts } => self.take_leadership(late, after, lasts),
            Fault::Transfer { to } => {
                if let (Some(leader), Some(to)) = (self.targets.statuses.leader(), self.places(to).first()) {
                    self.targets.statuses.order(leader, Order::HandOver(node_id(*to)));
                }
            }
            other => self.begin_on_disk(other)?,
        }
        Ok(())
    }

    fn resume(&mut self, host: HostId) {
        let (since, is_paused) = (self.paused.remove(&host), self.sim.is_paused(host));
        let place = self.targets.nodes.iter().position(|node| *node == host);
        if let (Some(since), Some(place), true) = (since, place, is_paused) {
            let after = self.sim.now() - since;
            self.targets.record.node(node_id(place), NodeFact::Resumed { after });
        }
        self.sim.resume(host);
    }

    fn cut(&mut self, links: Vec<Link>, lasts: Duration) {
        self.cuts.cut(self.sim.network(), &links);
        self.later(lasts, End::Join(links));
    }

    /// Returns the links between the target and all nodes, in both directions.
    fn to_other_nodes(&self, target: Target) -> Vec<Link> {
        let cut_off = self.hosts(&[target]);
        let others = self.targets.nodes.iter().filter(|node| !cut_off.contains(node));
        between(&cut_off, &others.copied().collect::<Vec<HostId>>())
    }

    fn host(&self, who: Birth) -> HostId {
        match who {
            Birth::Node(place) | Birth::ReturnedNode(place) => self.targets.nodes[place],
            Birth::Client(place) => self.targets.clients[place],
        }
    }

    /// Returns the processes that a target means now.
    fn processes(&self, target: Target) -> Vec<Birth> {
        let nodes = self.targets.membership.in_use().into_iter();
        let leader = self.targets.statuses.leader();
        match target {
            Target::Node(number) => vec![Birth::Node(number - 1)],
            Target::Leader => vec![Birth::Node(leader.unwrap_or(0))],
            Target::Follower(number) => {
                let mut others = nodes.filter(|place| Some(*place) != leader);
                others.nth(number - 1).map(Birth::Node).into_iter().collect()
            }
            Target::Client(number) => vec![Birth::Client(number - 1)],
            Target::AllNodes => nodes.map(Birth::Node).collect(),
            Target::AllClients => (0..self.targets.clients.len()).map(Birth::Client).collect(),
        }
    }

    /// Returns the nodes that a target means now, by place.
    fn places(&self, target: Target) -> Vec<usize> {
        let processes = self.processes(target).into_iter();
        processes.filter_map(|who| if let Birth::Node(place) = who { Some(place) } else { None }).collect()
    }

    fn hosts(&self, targets: &[Target]) -> Vec<HostId> {
        let processes = targets.iter().flat_map(|target| self.processes(*target));
        processes.map(|who| self.host(who)).collect()
    }

    /// Returns the hosts that a fault concerns, for the trace.
    fn concerned(&self, fault: &Fault) -> Vec<HostId> {
        BTreeSet::from_iter(self.hosts(&fault.targets())).into_iter().collect()
    }
}

/// Adds a birth once, even if two faults that killed the same process end at the same moment.
fn add(births: &mut Vec<Birth>, birth: Option<Birth>) {
    births.extend(birth.filter(|birth| !births.contains(birth)));
}
