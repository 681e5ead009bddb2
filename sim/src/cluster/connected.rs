//! Computes the service that the cluster owes from links, processes and disks: the ground for **in-time**.
//! Nodes contribute only their lists of voters.
//!
//! Invariant: in doubt (slow links, damaged disks, changes under way) the cluster owes less. Slow disks and
//! slow processors owe the same service, more slowly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::NodeId;
use rowlock_world::executor::{Simulation, USUAL_SPEED};
use rowlock_world::time::{HostId, Nanos};

use super::membership::{Membership, Part};
use super::node_statuses::{NodeStatuses, node_id};
use super::operator::OperatorQueue;
use super::shape::Autopilot;
use crate::history::client::ClientId;
use crate::history::{Connected, Fact, Quorum, Served};

/// Time for a connected quorum to serve, before probes ask for service.
pub(super) const PROBED_AFTER: Duration = Duration::from_secs(5);
/// Slowdown at which a flush, at most 0.3 ms on a usual disk, takes a second.
const SLOWEST_PACE: u32 = 3_300;

/// Pairs of places: two nodes, the smaller place first; or a client and a node, the client first.
type Pairs = BTreeSet<(usize, usize)>;

/// State of the world on which service depends. Nodes and clients are named by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ground {
    up: BTreeSet<usize>,
    /// Slowdown of the disk, from 1, of each running node whose disk works and has lost nothing. A flush
    /// takes at most a second.
    disks: BTreeMap<usize, u32>,
    /// Running nodes with the new release, for good.
    upgraded: BTreeSet<usize>,
    /// Running nodes that stop on request: they hand over, and serve no clients.
    leaving: BTreeSet<usize>,
    /// Slowdown of the slowest running node's processor, from 1.
    slowdown: u32,
    clients: BTreeSet<usize>,
    /// Pairs of nodes connected in both directions, however slowly.
    open: Pairs,
    /// Pairs of nodes connected in both directions at the usual speed.
    clear: Pairs,
    /// Pairs of a client and a node connected in both directions at the usual speed.
    reached: Pairs,
    /// Sets of voters, each of which needs a majority.
    configs: Vec<BTreeSet<usize>>,
    /// Members, voting or not, as far as that is certain.
    members: BTreeSet<usize>,
    autopilot: Option<Autopilot>,
    /// Whether these are all members.
    is_certain: bool,
    /// Nodes known to every client.
    known: BTreeSet<usize>,
    /// Nodes that clients choose from now, and all that clients have chosen from so far.
    offered: [BTreeSet<usize>; 2],
    /// Number of faults so far that broke connections of nodes, and by client.
    resets: (u64, Vec<u64>),
    /// Whether no change of members is pending.
    is_settled: bool,
}

/// Times of the last changes of the ground: of the part with the nodes alone, and of the parts that concern
/// each client.
#[derive(Clone, Debug, Default)]
struct Changes {
    of_nodes: Nanos,
    of_clients: Vec<Served>,
}

impl Ground {
    fn is_clear(&self, one: usize, other: usize) -> bool {
        one == other || self.clear.contains(&(one.min(other), one.max(other)))
    }

    fn is_open(&self, one: usize, other: usize) -> bool {
        one == other || self.open.contains(&(one.min(other), one.max(other)))
    }

    /// Returns the nodes that stay, and whose disks are slowed down to this pace at most.
    fn with_disks(&self, pace: u32) -> BTreeSet<usize> {
        let stays = |node: &usize| !self.leaving.contains(node) && self.disks[node] <= pace;
        self.disks.keys().copied().filter(stays).collect()
    }

    /// Returns the least slowdown of disks with which some quorum is fully connected.
    fn pace_of_core(&self) -> Option<u32> {
        let paces: BTreeSet<u32> = self.disks.values().copied().collect();
        let has_core = |pace: &u32| {
            Quorum(&self.configs).has_core(&self.with_disks(*pace), |one, other| self.is_clear(one, other))
        };
        paces.into_iter().find(has_core)
    }

    /// Returns running voters connected to a possible quorum: a stable leader is one of these.
    fn may_lead(&self) -> BTreeSet<usize> {
        let may = |node: &usize| {
            let reached = self.up.iter().copied().filter(|other| self.is_open(*node, *other)).collect();
            self.configs.iter().any(|voters| Quorum::is_most(&reached, voters))
        };
        Quorum(&self.configs).voters().intersection(&self.up).copied().filter(may).collect()
    }

    /// Returns whether all members are fully connected, with quick disks, and run the new release.
    fn is_upgraded(&self) -> bool {
        let (quick, all) = (self.with_disks(1), &self.members);
        let is_clear = |one: &usize| all.iter().all(|other| self.is_clear(*one, *other));
        all.is_subset(&quick) && all.is_subset(&self.upgraded) && all.iter().all(is_clear)
    }

    /// Returns the time after which the autopilot changes these members: a learner votes, or the only voter
    /// that does not run leaves, while the leader reaches all the others.
    fn changes_after(&self) -> Option<Duration> {
        let (autopilot, quick) = (self.autopilot?, self.with_disks(1));
        let is_clear = |one: &usize| self.members.iter().all(|other| self.is_clear(*one, *other));
        let is_sound = |node: &&usize| quick.contains(node) && is_clear(node);
        let voters = Quorum(&self.configs).voters();
        let running: BTreeSet<usize> = voters.intersection(&self.up).copied().collect();
        let reaches_all = |one: &usize| running.iter().all(|other| self.is_clear(*one, *other));
        let are_well = running.iter().all(|one| quick.contains(one) && reaches_all(one));
        let learners = self.members.difference(&voters).filter(is_sound);
        let promoted = learners.count() > 0 && voters.iter().all(|voter| is_sound(&voter));
        let left = voters.len().saturating_sub(1);
        let is_alone = running.len() == left && are_well;
        let removed = autopilot.remove_dead_after_ms.filter(|_| is_alone && left >= autopilot.min_voters);
        let after_ms = promoted.then_some(autopilot.promote_after_ms).or(removed)?;
        Some(Duration::from_millis(after_ms))
    }

    /// Returns the service that the cluster owes; `None` without a core.
    fn connected(&self, changes: &Changes) -> Option<Connected> {
        let disk_pace = self.pace_of_core()?;
        let (sound, leaders) = (self.with_disks(disk_pace), self.may_lead());
        let reaches_leaders = |node: &usize| leaders.iter().all(|leader| self.is_clear(*node, *leader));
        let serving: BTreeSet<usize> =
            sound.intersection(&self.members).copied().filter(reaches_leaders).collect();
        let is_served = |client: &usize| {
            leaders.iter().all(|leader| {
                let mut reached = self.known.iter().filter(|node| self.reached.contains(&(*client, **node)));
                reached.any(|node| sound.contains(node) && self.is_clear(*node, *leader))
            })
        };
        let serves =
            |client: usize, node: &usize| serving.contains(node) && self.reached.contains(&(client, *node));
        let ground = |client: usize| {
            let [by_all, by_former] =
                self.offered.each_ref().map(|nodes| nodes.iter().all(|node| serves(client, node)));
            let since = changes.of_clients.get(client).copied().unwrap_or_default();
            (ClientId(client), Served { by_all, by_former, ..since })
        };
        Some(Connected {
            may_lead: leaders.iter().copied().map(node_id).collect(),
            served: self.clients.iter().copied().filter(is_served).map(ground).collect(),
            serving: serving.into_iter().map(node_id).collect(),
            changed: changes.of_nodes,
            is_settled: self.is_settled,
            changes_after: self.changes_after().filter(|_| self.is_certain),
            is_upgraded: self.is_certain && self.is_upgraded(),
            disk_pace,
            slowdown: self.slowdown,
        })
    }

    /// Returns whether the nodes alone have the same ground here as in `other`.
    fn has_nodes_of(&self, other: &Ground) -> bool {
        let of = |it: &Ground| {
            let links = (it.open.clone(), it.clear.clone());
            let members = (it.configs.clone(), it.members.clone(), it.is_certain);
            (it.up.clone(), it.disks.clone(), links, members, it.resets.0)
        };
        of(self) == of(other) && self.is_settled == other.is_settled && self.slowdown == other.slowdown
    }

    /// Returns what concerns this client alone: its life, and the nodes that it reaches.
    fn of_client(&self, client: usize) -> (bool, Pairs) {
        let reached = self.reached.range((client, 0)..(client + 1, 0)).copied().collect();
        (self.clients.contains(&client), reached)
    }
}

impl Changes {
    /// Records the changes from `last` to `now`.
    fn record(&mut self, at: Nanos, last: Option<&Ground>, now: &Ground, clients: usize) {
        let is_same = last.is_some_and(|last| last.has_nodes_of(now));
        self.of_nodes = if is_same { self.of_nodes } else { at };
        self.of_clients.resize(clients, Served { changed: at, disturbed: at, ..Served::default() });
        for (client, since) in self.of_clients.iter_mut().enumerate() {
            let Some(last) = last else { continue };
            let is_so = is_same && last.leaving == now.leaving;
            let changes = !is_so || last.of_client(client) != now.of_client(client);
            let breaks =
                changes || last.resets.0 != now.resets.0 || last.resets.1[client] != now.resets.1[client];
            since.changed = if changes { at } else { since.changed };
            since.disturbed = if breaks { at } else { since.disturbed };
        }
    }
}

/// Detects changes of the world.
pub(super) struct Watcher {
    sim: Simulation,
    nodes: Vec<HostId>,
    clients: Vec<HostId>,
    statuses: NodeStatuses,
    membership: Membership,
    queue: OperatorQueue,
    last: Option<Ground>,
    changes: Changes,
    owed: Option<Arc<Connected>>,
    /// Whether the script frees the cluster from all service.
    is_free: bool,
    autopilot: Option<Autopilot>,
}

impl Watcher {
    pub(super) fn new(
        sim: Simulation,
        (nodes, clients): (Vec<HostId>, Vec<HostId>),
        statuses: NodeStatuses,
        membership: Membership,
        queue: OperatorQueue,
    ) -> Self {
        let (last, changes, owed, is_free) = (None, Changes::default(), None, false);
        Watcher {
            sim,
            nodes,
            clients,
            statuses,
            membership,
            queue,
            last,
            changes,
            owed,
            is_free,
            autopilot: None,
        }
    }

    /// Sets the leader's own changes of members, and whether the script frees the cluster from all service.
    pub(super) fn of(self, autopilot: Option<Autopilot>, is_free: bool) -> Self {
        Watcher { autopilot, is_free, ..self }
    }

    /// Returns the service of quick disks that has been owed for longer than `within`.
    pub(super) fn due(&self, within: Duration) -> Option<Arc<Connected>> {
        let is_due =
            |it: &Arc<Connected>| it.is_settled && it.disk_pace == 1 && self.sim.now() > it.changed + within;
        self.owed.clone().filter(is_due)
    }

    /// Returns a fact if the ground has changed. `resets`: number of faults so far that broke connections, by
    /// host.
    pub(super) fn observe(&mut self, resets: &BTreeMap<HostId, u64>) -> Option<Fact> {
        let ground = self.ground(resets);
        if self.last.as_ref() == Some(&ground) {
            return None;
        }
        let at = self.sim.now();
        self.changes.record(at, self.last.as_ref(), &ground, self.clients.len());
        let now = ground.connected(&self.changes).filter(|_| !self.is_free).map(Arc::new);
        self.last = Some(ground);
        self.owed.clone_from(&now);
        Some(Fact::Connected { at, now })
    }

    fn ground(&self, resets: &BTreeMap<HostId, u64>) -> Ground {
        let runs = |host: HostId| self.sim.is_up(host) && !self.sim.is_paused(host);
        let in_use = self.membership.in_use();
        let up: BTreeSet<usize> = in_use.into_iter().filter(|place| runs(self.nodes[*place])).collect();
        let works = |place: &usize| {
            let is_spoilt = self.membership.has_forgotten(*place) || self.membership.is_damaged(*place);
            !is_spoilt
                && !self.statuses.is_left_behind(*place)
                && self.sim.disk(self.nodes[*place]).is_at_most(SLOWEST_PACE)
        };
        let network = self.sim.network();
        let pairs = |holds: &dyn Fn(HostId, HostId) -> bool| -> Pairs {
            let all = up.iter().flat_map(|one| up.range(one + 1..).map(move |other| (*one, *other)));
            all.filter(|(one, other)| holds(self.nodes[*one], self.nodes[*other])).collect()
        };
        let running = |place: &usize| runs(self.clients[*place]);
        let clients: BTreeSet<usize> = (0..self.clients.len()).filter(running).collect();
        let reached = clients.iter().flat_map(|client| up.iter().map(move |node| (*client, *node)));
        let reaches =
            |(client, node): &(usize, usize)| network.is_sound(self.clients[*client], self.nodes[*node]);
        let configs = self.configs(&up);
        let is_alone = configs.len() == 1;
        let pace = |place: usize| (place, self.sim.disk(self.nodes[place]).pace().max(1));
        let slowdown = |place: &usize| USUAL_SPEED / self.sim.speed(self.nodes[*place]).max(1);
        let broken = |host: &HostId| resets.get(host).copied().unwrap_or_default();
        let offered = [Part::Voter, Part::Learner].map(|part| places(self.membership.of_part(part)));
        let offered: BTreeSet<usize> = offered.into_iter().flatten().collect();
        let former = self.last.iter().flat_map(|last| &last.offered[1]).chain(&offered).copied().collect();
        Ground {
            disks: up.iter().copied().filter(works).map(pace).collect(),
            leaving: up.iter().copied().filter(|place| self.statuses.is_leaving(*place)).collect(),
            slowdown: up.iter().map(slowdown).max().unwrap_or(1).max(1),
            open: pairs(&|one, other| network.is_open(one, other)),
            clear: pairs(&|one, other| network.is_sound(one, other)),
            reached: reached.filter(reaches).collect(),
            members: self.members(&configs),
            is_certain: is_alone && self.membership.of_part(Part::Unknown).is_empty(),
            upgraded: up.iter().copied().filter(|place| self.statuses.is_upgraded(*place)).collect(),
            configs,
            known: up.iter().copied().filter(|place| self.membership.is_founder(*place)).collect(),
            offered: [offered, former],
            resets: (self.nodes.iter().map(broken).sum(), self.clients.iter().map(broken).collect()),
            is_settled: self.queue.is_idle() && (is_alone || self.autopilot.is_none()),
            autopilot: self.autopilot,
            up,
            clients,
        }
    }

    /// Returns the certain members. A node is not among them if the operator gave up its job: the node runs
    /// without being a member.
    fn members(&self, configs: &[BTreeSet<usize>]) -> BTreeSet<usize> {
        let is_certain = |place: &usize| configs.iter().all(|voters| voters.contains(place));
        let voters = configs.iter().flatten().copied().filter(is_certain);
        voters.chain(places(self.membership.of_part(Part::Learner))).collect()
    }

    /// Returns the sets of voters according to the operator and to each running node. A pending change needs
    /// both quorums.
    fn configs(&self, up: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
        let told = up.iter().map(|place| self.statuses.status(*place).voters);
        let told = told.filter(|voters| !voters.is_empty());
        let sets: BTreeSet<_> = told.chain([self.membership.of_part(Part::Voter)]).map(places).collect();
        sets.into_iter().collect()
    }
}

fn places(nodes: Vec<NodeId>) -> BTreeSet<usize> {
    nodes.into_iter().map(|node| node.0 as usize - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a ground where all nodes and clients run and are connected, except the `cut` pairs.
    fn ground(voters: usize, cut: &[(usize, usize)]) -> Ground {
        let all: BTreeSet<usize> = (1..=voters).collect();
        let pairs = all.iter().flat_map(|one| all.range(one + 1..).map(move |other| (*one, *other)));
        let open: Pairs = pairs.filter(|pair| !cut.contains(pair)).collect();
        Ground {
            up: all.clone(),
            disks: all.iter().map(|node| (*node, 1)).collect(),
            leaving: BTreeSet::new(),
            upgraded: all.clone(),
            is_certain: true,
            autopilot: None,
            slowdown: 1,
            clients: BTreeSet::from([1]),
            clear: open.clone(),
            open,
            reached: all.iter().map(|node| (1, *node)).collect(),
            configs: vec![all.clone()],
            members: all.clone(),
            known: all.clone(),
            offered: [all.clone(), all],
            resets: (0, vec![0, 0]),
            is_settled: true,
        }
    }

    fn nodes(places: &[usize]) -> BTreeSet<NodeId> {
        places.iter().copied().map(node_id).collect()
    }

    #[test]
    fn nodes_with_a_quorum_may_lead_and_nodes_with_all_these_serve() {
        // openraft 2080: the old leader 1 reaches the bridge 2 alone, and 5 reaches no node.
        let bridge = [(1, 3), (1, 4), (1, 5), (2, 5), (3, 5), (4, 5)];
        let now = ground(5, &bridge).connected(&Changes::default()).expect("2, 3 and 4 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[2, 3, 4]), nodes(&[2, 3, 4])));
        // A chain of three: each end may lead, and reaches not the other one.
        let now = ground(3, &[(1, 3)]).connected(&Changes::default()).expect("1 and 2 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[1, 2, 3]), nodes(&[2])));
        assert!(!now.served[&ClientId(1)].by_all && now.served.len() == 1, "it reaches all nodes");
    }

    #[test]
    fn a_quorum_that_is_not_fully_connected_is_no_core() {
        // One node reaches all others, which do not reach each other.
        let star = [(2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)];
        assert_eq!(ground(5, &star).connected(&Changes::default()), None);
        let chain = [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5)];
        assert_eq!(ground(5, &chain).connected(&Changes::default()), None);
        let mut slow = ground(3, &[]);
        slow.disks.remove(&3);
        assert!(slow.connected(&Changes::default()).is_some());
        slow.clear.remove(&(1, 2));
        assert_eq!(slow.connected(&Changes::default()), None);
    }

    #[test]
    fn a_core_has_both_quorums() {
        let mut joint = ground(5, &[]);
        joint.configs = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 4, 5])];
        assert!(joint.connected(&Changes::default()).is_some());
        let disks = |nodes: [usize; 3]| nodes.into_iter().map(|node| (node, 1)).collect();
        joint.disks = disks([1, 2, 3]);
        assert_eq!(joint.connected(&Changes::default()), None);
        joint.disks = disks([2, 3, 4]).into_iter().chain([(5, 1)]).collect();
        assert!(joint.connected(&Changes::default()).is_some());
        joint.is_settled = false;
        assert!(joint.connected(&Changes::default()).is_some_and(|now| !now.is_settled));
    }

    #[test]
    fn slow_disks_owe_the_same_service_at_their_pace() {
        let mut slow = ground(3, &[]);
        slow.disks = BTreeMap::from([(1, 1), (2, 20), (3, 200)]);
        let now = slow.connected(&Changes::default()).expect("1 and 2 are a core");
        assert_eq!((now.disk_pace, now.may_lead, now.serving), (20, nodes(&[1, 2, 3]), nodes(&[1, 2])));
        slow.disks = BTreeMap::from([(1, 1)]);
        assert_eq!(slow.connected(&Changes::default()), None);
    }

    #[test]
    fn each_change_concerns_the_nodes_or_some_clients() {
        let before = Ground { clients: BTreeSet::from([0, 1]), ..ground(3, &[]) };
        let since = |now: &Ground| {
            let mut changes = Changes::default();
            changes.record(Nanos(1), None, &before, 2);
            changes.record(Nanos(2), Some(&before), now, 2);
            let of = |since: &Served| [since.changed.0, since.disturbed.0];
            (changes.of_nodes.0, changes.of_clients.iter().map(of).collect::<Vec<_>>())
        };
        let away = Ground { clients: BTreeSet::from([1]), ..before.clone() };
        assert_eq!(since(&away), (1, vec![[2, 2], [1, 1]]));
        let reset = Ground { resets: (0, vec![1, 0]), ..before.clone() };
        assert_eq!(since(&reset), (1, vec![[1, 2], [1, 1]]));
        let down = Ground { up: (1..=2).collect(), ..before.clone() };
        assert_eq!(since(&down), (2, vec![[2, 2], [2, 2]]));
    }

    /// The operator does not know that node 2, after the loss of its data, votes again (seed 300,033).
    #[test]
    fn a_node_that_reaches_a_quorum_of_one_set_of_voters_may_lead() {
        let mut bridge = ground(5, &[(1, 2), (1, 5), (3, 2), (3, 5)]);
        bridge.configs.push(BTreeSet::from([1, 3, 4, 5]));
        let now = bridge.connected(&Changes::default()).expect("1, 3 and 4 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[1, 2, 3, 4, 5]), nodes(&[4])));
    }

    #[test]
    fn the_only_silent_voter_leaves_while_the_others_are_connected() {
        let autopilot = Autopilot { promote_after_ms: 1, remove_dead_after_ms: Some(7), min_voters: 3 };
        let mut down = Ground { autopilot: Some(autopilot), ..ground(5, &[]) };
        assert_eq!(down.changes_after(), None, "all voters run");
        down.up.remove(&2);
        down.clear.retain(|pair| pair.0 != 2 && pair.1 != 2);
        assert_eq!(down.changes_after(), Some(Duration::from_millis(7)));
        assert_eq!(Ground { disks: [(1, 9)].into(), ..down.clone() }.changes_after(), None, "voter 1 lags");
        let (two, mut cut) = (Ground { up: (3..=5).collect(), ..down.clone() }, down);
        assert_eq!(two.changes_after(), None, "two are silent");
        // Seed 7353: the leader hears nothing of the isolated voter 1.
        cut.clear.retain(|pair| pair.0 != 1);
        assert_eq!(cut.changes_after(), None, "two are silent for the leader");
    }

    #[test]
    fn a_client_with_a_way_to_each_possible_leader_is_served() {
        let mut partial = ground(3, &[]);
        partial.reached = BTreeSet::from([(1, 3)]);
        assert_eq!(partial.connected(&Changes::default()).expect("a core").served.len(), 1);
        let mut chain = ground(3, &[(1, 3)]);
        chain.reached = BTreeSet::from([(1, 3)]);
        assert!(chain.connected(&Changes::default()).expect("a core").served.is_empty(), "1 may lead");
    }
}
