//! Budget of permanent damage: the generator asks the budget before a fault removes anything for good.
//!
//! Invariant: unless the script is over budget, a majority of every membership that the run may have had
//! keeps its disks, and half of the clients live. The promises cover the loss of a minority's disks. With
//! more disks gone, lost data would be legitimate, and a checker's objection would be wrong.

use std::collections::BTreeSet;

use rowlock_world::time::Nanos;

/// Bound on the nodes added by a run.
const NEW_NODES_MAX: usize = 3;

/// Budget of one script.
pub(super) struct Budget {
    unlimited: bool,
    /// Size of the smallest membership that the leader's own removals of dead voters leave. The operator
    /// removes none then.
    least_voters: Option<usize>,
    /// No further node may be lost.
    keeps_all: bool,
    clients: usize,
    clients_gone: usize,
    /// Memberships that may be in force at some point: a change may come late, or never.
    memberships: Vec<BTreeSet<usize>>,
    /// Nodes with damaged disks, and nodes that never come back.
    gone: BTreeSet<usize>,
    /// Number of lost nodes that faults name by their role: each may be any node.
    gone_by_role: usize,
    next_node: usize,
    last_node: usize,
    /// End of the replacement under way; until then no other fault changes the membership.
    settled_at: Nanos,
    /// Times at which temporarily stopped nodes are back.
    down_until: Vec<Nanos>,
    /// Times at which cut links work again.
    cut_until: Vec<Nanos>,
    /// Time at which the flush failure under way has been repaired.
    repaired_at: Nanos,
    /// End of the flood under way.
    ebbs_at: Nanos,
}

impl Budget {
    pub(super) fn new((nodes, learners): (usize, usize), clients: usize, unlimited: bool) -> Self {
        Budget {
            unlimited,
            least_voters: None,
            keeps_all: false,
            clients,
            clients_gone: 0,
            memberships: vec![(1..=nodes).collect()],
            gone: BTreeSet::new(),
            gone_by_role: 0,
            next_node: nodes + learners + 1,
            last_node: nodes + learners + NEW_NODES_MAX,
            settled_at: Nanos(0),
            down_until: Vec::new(),
            cut_until: Vec::new(),
            repaired_at: Nanos(0),
            ebbs_at: Nanos(0),
        }
    }

    /// Allows the leader to remove dead voters down to this number.
    pub(super) fn with_removals(self, least_voters: Option<usize>) -> Self {
        Budget { least_voters, ..self }
    }

    /// Reports whether the operator removes members.
    pub(super) fn may_remove(&self) -> bool {
        self.least_voters.is_none()
    }

    /// Reports whether this number of lost nodes leaves a majority of each membership that the leader's own
    /// removals may lead to: they may remove other nodes.
    fn is_spared(&self, gone: usize) -> bool {
        self.unlimited || self.least_voters.is_none_or(|least| gone * 2 < least)
    }

    /// Returns the voters if all changes so far have succeeded.
    pub(super) fn voters(&self) -> Vec<usize> {
        self.memberships.last().into_iter().flatten().copied().collect()
    }

    /// Returns the voters that are not known to be gone.
    pub(super) fn alive(&self) -> Vec<usize> {
        self.voters().into_iter().filter(|node| !self.gone.contains(node)).collect()
    }

    /// Forbids any further loss of a node, and any removal of a member.
    pub(super) fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// Removes the node for good, if the budget allows that.
    pub(super) fn lose_node(&mut self, node: usize) -> bool {
        let mut gone = self.gone.clone();
        let allowed = !self.keeps_all
            && gone.insert(node)
            && self.is_spared(gone.len() + self.gone_by_role)
            && (self.unlimited
                || self.memberships.iter().all(|all| keeps_a_majority(all, &gone, self.gone_by_role)));
        if allowed {
            self.gone = gone;
        }
        allowed
    }

    /// Removes a node named by role. The node is unknown, so the membership may not change
    /// any more.
    pub(super) fn lose_some_node(&mut self) -> bool {
        let known = self.memberships.len() == 1;
        let left = |all: &BTreeSet<usize>| keeps_a_majority(all, &self.gone, self.gone_by_role + 1);
        let is_within = self.unlimited || known && self.memberships.iter().all(left);
        let is_spared = self.is_spared(self.gone.len() + self.gone_by_role + 1);
        let allowed = !self.keeps_all && is_within && is_spared;
        self.gone_by_role += usize::from(allowed);
        allowed
    }

    /// Removes a client for good; half of the clients stay.
    pub(super) fn lose_client(&mut self) -> bool {
        let allowed = (self.clients_gone + 1) * 2 <= self.clients;
        self.clients_gone += usize::from(allowed);
        allowed
    }

    /// Reports whether the membership may change at `at`.
    pub(super) fn is_settled(&self, at: Nanos) -> bool {
        at >= self.settled_at
    }

    /// Records a replacement that lasts until `until`.
    pub(super) fn unsettle(&mut self, until: Nanos) {
        self.settled_at = until;
    }

    /// Returns the number of a new voter, if the budget has a free number.
    pub(super) fn add_voter(&mut self) -> Option<usize> {
        let node = self.next_node();
        let mut voters = self.voters();
        voters.push(node?);
        if self.change(voters) { self.add_learner() } else { None }
    }

    /// Returns the number of a new learner, if the budget has a free number.
    pub(super) fn add_learner(&mut self) -> Option<usize> {
        let node = self.next_node();
        self.next_node += usize::from(node.is_some());
        node
    }

    fn next_node(&self) -> Option<usize> {
        (self.next_node <= self.last_node).then_some(self.next_node)
    }

    /// Removes the node from the membership, if enough voters stay.
    pub(super) fn remove(&mut self, node: usize) -> bool {
        let left: Vec<usize> = self.voters().into_iter().filter(|n| *n != node).collect();
        let enough = left.len() >= 3 || (self.gone.contains(&node) && left.len() >= 2);
        enough && self.may_remove() && self.change(left)
    }

    fn change(&mut self, voters: Vec<usize>) -> bool {
        let voters: BTreeSet<usize> = voters.into_iter().collect();
        let allowed = self.gone_by_role == 0 && (self.unlimited || keeps_a_majority(&voters, &self.gone, 0));
        if allowed {
            self.memberships.push(voters);
        }
        allowed
    }

    /// Reports whether a majority is up at `at` after the loss of another node.
    pub(super) fn majority_is_up(&self, at: Nanos) -> bool {
        let down = self.down_until.iter().filter(|until| **until > at).count();
        (down + 1 + self.gone.len() + self.gone_by_role) * 2 < self.voters().len()
    }

    pub(super) fn down(&mut self, until: Nanos) {
        self.down_until.push(until);
    }

    /// Returns the number of faults that cut links at `at`.
    pub(super) fn cuts(&self, at: Nanos) -> usize {
        self.cut_until.iter().filter(|until| **until > at).count()
    }

    pub(super) fn cut(&mut self, until: Nanos) {
        self.cut_until.push(until);
    }

    /// Records a flood from `at` to `until`, unless another flood is under way: two floods cost a run much
    /// time.
    pub(super) fn flood(&mut self, at: Nanos, until: Nanos) -> bool {
        let allowed = at >= self.ebbs_at;
        if allowed {
            self.ebbs_at = until;
        }
        allowed
    }

    /// Records a failing flush from `at` to `until`, unless another failure is under way.
    pub(super) fn spoil_flush(&mut self, at: Nanos, until: Nanos) -> bool {
        let allowed = self.unlimited || at >= self.repaired_at;
        if allowed {
            self.repaired_at = self.repaired_at.max(until);
        }
        allowed
    }
}

fn keeps_a_majority(members: &BTreeSet<usize>, gone: &BTreeSet<usize>, gone_by_role: usize) -> bool {
    (members.intersection(gone).count() + gone_by_role) * 2 < members.len()
}
