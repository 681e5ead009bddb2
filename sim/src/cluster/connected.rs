//! Computes the service that the cluster owes from links, processes and disks: the ground for
//! **serves-while-a-quorum-is-connected**. Nodes contribute only their lists of voters.
//!
//! Invariant: in doubt (slow links, damaged disks, changes under way) the cluster owes less.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_proto::NodeId;
use rowlock_world::executor::Simulation;
use rowlock_world::time::{HostId, Nanos};

use super::membership::{Membership, Part};
use super::node_statuses::{NodeStatuses, node_id};
use super::operator::OperatorQueue;
use crate::history::client::ClientId;
use crate::history::{Connected, Fact, Quorum};
use crate::invariants::SERVES_WITHIN as WITHIN;

/// Slowdown at which a flush, at most 0.3 ms on a usual disk, takes a second.
const SLOWEST_PACE: u32 = 3_300;

/// Pairs of places: two nodes, the smaller place first; or a client and a node, the client first.
type Pairs = BTreeSet<(usize, usize)>;

/// State of the world on which service depends. Nodes and clients are named by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ground {
    up: BTreeSet<usize>,
    /// Running nodes whose disks work and have lost nothing.
    sound: BTreeSet<usize>,
    /// Running nodes whose disks have lost nothing; a flush may take up to a second.
    electable: BTreeSet<usize>,
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
    /// Nodes known to every client.
    known: BTreeSet<usize>,
    /// Number of begun and ended faults.
    deeds: u64,
    /// Whether no change of members is pending.
    is_settled: bool,
}

impl Ground {
    fn is_clear(&self, one: usize, other: usize) -> bool {
        one == other || self.clear.contains(&(one.min(other), one.max(other)))
    }

    fn is_open(&self, one: usize, other: usize) -> bool {
        one == other || self.open.contains(&(one.min(other), one.max(other)))
    }

    /// Returns whether some quorum of these nodes is fully connected.
    fn has_core(&self, nodes: &BTreeSet<usize>) -> bool {
        Quorum(&self.configs).has_core(nodes, |one, other| self.is_clear(one, other))
    }

    /// Returns running voters connected to a possible quorum: a stable leader is one of these.
    fn may_lead(&self) -> BTreeSet<usize> {
        let may = |node: &usize| {
            let reached = self.up.iter().copied().filter(|other| self.is_open(*node, *other)).collect();
            self.configs.iter().any(|voters| Quorum::is_most(&reached, voters))
        };
        Quorum(&self.configs).voters().intersection(&self.up).copied().filter(may).collect()
    }

    /// Returns the service that the cluster owes; `None` without a core.
    pub(super) fn connected(&self) -> Option<Connected> {
        if !self.is_settled || !self.has_core(&self.sound) {
            return None;
        }
        let leaders = self.may_lead();
        let serves = |node: &usize| leaders.iter().all(|leader| self.is_clear(*node, *leader));
        let serving = self.sound.intersection(&self.members).copied().filter(serves).map(node_id).collect();
        let is_served = |client: usize| {
            leaders.iter().all(|leader| {
                let mut reached = self.known.iter().filter(|node| self.reached.contains(&(client, **node)));
                reached.any(|node| self.sound.contains(node) && self.is_clear(*node, *leader))
            })
        };
        let served = self.clients.iter().copied().filter(|client| is_served(*client)).map(ClientId).collect();
        Some(Connected { may_lead: leaders.into_iter().map(node_id).collect(), serving, served })
    }

    /// Returns the nodes of which one must lead soon, even with disks that need a second for each flush.
    /// Faults on other parts of the world do not cancel this debt.
    fn electable(&self) -> Option<BTreeSet<NodeId>> {
        let owes = self.is_settled && self.has_core(&self.electable);
        owes.then(|| self.may_lead().into_iter().map(node_id).collect())
    }

    fn linked(&self, at: Nanos) -> Fact {
        let sound = self.sound.iter().copied().map(node_id).collect();
        let clear = self.clear.iter().map(|(one, other)| (node_id(*one), node_id(*other))).collect();
        Fact::Linked { at, sound: Arc::new(sound), clear: Arc::new(clear) }
    }

    /// Returns whether an election has the same ground here as in `other`.
    fn elects_as(&self, other: &Ground) -> bool {
        let of = |it: &Ground| {
            (it.up.clone(), it.electable.clone(), it.open.clone(), it.clear.clone(), it.configs.clone())
        };
        of(self) == of(other) && self.is_settled == other.is_settled
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
    /// Service owed now, with the time since which the cluster owes exactly this service.
    owed: Option<(Nanos, Arc<Connected>)>,
    /// Whether the script frees the cluster from all service.
    is_free: bool,
}

impl Watcher {
    pub(super) fn new(
        sim: Simulation,
        (nodes, clients): (Vec<HostId>, Vec<HostId>),
        statuses: NodeStatuses,
        membership: Membership,
        queue: OperatorQueue,
    ) -> Self {
        Watcher { sim, nodes, clients, statuses, membership, queue, last: None, owed: None, is_free: false }
    }

    /// Frees the cluster from all service, because of its script.
    pub(super) fn of_a_free_cluster(self) -> Self {
        Watcher { is_free: true, ..self }
    }

    /// Returns the service that has been owed for longer than the bound.
    pub(super) fn due(&self) -> Option<Arc<Connected>> {
        let (since, owed) = self.owed.as_ref()?;
        (self.sim.now() > *since + WITHIN).then(|| owed.clone())
    }

    /// Returns facts if the ground has changed.
    pub(super) fn observe(&mut self, deeds: u64) -> Vec<Fact> {
        let ground = self.ground(deeds);
        if self.last.as_ref() == Some(&ground) {
            return Vec::new();
        }
        let (at, now) = (self.sim.now(), ground.connected().filter(|_| !self.is_free).map(Arc::new));
        let mut facts = Vec::new();
        let is_linked_as = |last: &Ground| (&last.sound, &last.clear) == (&ground.sound, &ground.clear);
        if !self.is_free && !self.last.as_ref().is_some_and(is_linked_as) {
            facts.push(ground.linked(at));
        }
        if !self.last.as_ref().is_some_and(|last| last.elects_as(&ground)) {
            let may_lead = ground.electable().filter(|_| !self.is_free).map(Arc::new);
            facts.push(Fact::Electable { at, may_lead });
        }
        self.last = Some(ground);
        self.owed = now.clone().map(|now| (at, now));
        facts.push(Fact::Connected { at, now });
        facts
    }

    fn ground(&self, deeds: u64) -> Ground {
        let runs = |host: HostId| self.sim.is_up(host) && !self.sim.is_paused(host);
        let in_use = self.membership.in_use();
        let up: BTreeSet<usize> = in_use.into_iter().filter(|place| runs(self.nodes[*place])).collect();
        let works = |place: usize, pace: u32| {
            let is_spoilt = self.membership.has_forgotten(place) || self.membership.is_damaged(place);
            !is_spoilt && self.sim.disk(self.nodes[place]).is_at_most(pace)
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
        Ground {
            sound: up.iter().copied().filter(|place| works(*place, 1)).collect(),
            electable: up.iter().copied().filter(|place| works(*place, SLOWEST_PACE)).collect(),
            open: pairs(&|one, other| network.is_open(one, other)),
            clear: pairs(&|one, other| network.is_sound(one, other)),
            reached: reached.filter(reaches).collect(),
            members: self.members(&configs),
            configs,
            known: up.iter().copied().filter(|place| self.membership.is_founder(*place)).collect(),
            deeds,
            is_settled: self.queue.is_idle(),
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
            sound: all.clone(),
            electable: all.clone(),
            clients: BTreeSet::from([1]),
            clear: open.clone(),
            open,
            reached: all.iter().map(|node| (1, *node)).collect(),
            configs: vec![all.clone()],
            members: all.clone(),
            known: all,
            deeds: 0,
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
        let now = ground(5, &bridge).connected().expect("2, 3 and 4 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[2, 3, 4]), nodes(&[2, 3, 4])));
        // A chain of three: each end may lead, and reaches not the other one.
        let now = ground(3, &[(1, 3)]).connected().expect("1 and 2 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[1, 2, 3]), nodes(&[2])));
        assert_eq!(now.served, BTreeSet::from([ClientId(1)]), "it reaches all nodes");
    }

    #[test]
    fn a_quorum_that_is_not_fully_connected_is_no_core() {
        // One node reaches all others, which do not reach each other.
        let star = [(2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)];
        assert_eq!(ground(5, &star).connected(), None);
        let chain = [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5)];
        assert_eq!(ground(5, &chain).connected(), None);
        let mut slow = ground(3, &[]);
        slow.sound = BTreeSet::from([1, 2]);
        assert!(slow.connected().is_some());
        slow.clear.remove(&(1, 2));
        assert_eq!(slow.connected(), None);
    }

    #[test]
    fn a_core_has_both_quorums_and_a_pending_change_owes_nothing() {
        let mut joint = ground(5, &[]);
        joint.configs = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 4, 5])];
        assert!(joint.connected().is_some());
        joint.sound = BTreeSet::from([1, 2, 3]);
        assert_eq!(joint.connected(), None);
        joint.sound = BTreeSet::from([2, 3, 4, 5]);
        assert!(joint.connected().is_some());
        joint.is_settled = false;
        assert_eq!(joint.connected(), None);
    }

    #[test]
    fn slow_disks_owe_an_election_and_other_faults_do_not_delay_it() {
        let mut slow = ground(3, &[]);
        slow.sound.clear();
        assert_eq!(slow.connected(), None);
        assert_eq!(slow.electable(), Some(nodes(&[1, 2, 3])));
        let deed = Ground { deeds: 9, clients: BTreeSet::new(), ..slow.clone() };
        assert!(slow.elects_as(&deed));
        let dead = Ground { electable: BTreeSet::from([1]), ..slow.clone() };
        assert!(!slow.elects_as(&dead) && dead.electable().is_none());
    }

    /// The operator does not know that node 2, after the loss of its data, votes again (seed 300,033).
    #[test]
    fn a_node_that_reaches_a_quorum_of_one_set_of_voters_may_lead() {
        let mut bridge = ground(5, &[(1, 2), (1, 5), (3, 2), (3, 5)]);
        bridge.configs.push(BTreeSet::from([1, 3, 4, 5]));
        let now = bridge.connected().expect("1, 3 and 4 are a core");
        assert_eq!((now.may_lead, now.serving), (nodes(&[1, 2, 3, 4, 5]), nodes(&[4])));
    }

    #[test]
    fn a_client_with_a_way_to_each_possible_leader_is_served() {
        let mut partial = ground(3, &[]);
        partial.reached = BTreeSet::from([(1, 3)]);
        assert_eq!(partial.connected().expect("a core").served.len(), 1);
        let mut chain = ground(3, &[(1, 3)]);
        chain.reached = BTreeSet::from([(1, 3)]);
        assert!(chain.connected().expect("a core").served.is_empty(), "1 may lead");
    }
}
