//! End of a run: checks the state after all clients are at rest, and again after all nodes have stopped.

use std::time::Duration;

use super::membership::Part;
use super::node_statuses::{Order, Process, node_id};
use super::run::{RECOVERY, Run, Stop};
use crate::history::Fact;
use crate::history::client::{ClientFact, ClientId};

/// Time limit for a node's shutdown.
const STOP: Duration = Duration::from_secs(30);
/// Exceeds the time for which a kernel retransmits to a silent machine.
const LAST_SEGMENTS: Duration = Duration::from_secs(70);

/// Time for a node to serve after the last change of the nodes and links: an election may wait for voters
/// that remember, and the node may need a snapshot.
const SERVES_WITHIN: Duration = Duration::from_secs(8);

impl Run {
    /// Checks the state after all clients and nodes are at rest.
    pub(super) fn audit(&self) {
        for (place, host) in self.clients.iter().enumerate() {
            let left = self.sim.tasks_of(*host);
            let client = ClientId(place);
            if self.sim.is_up(*host) && !left.is_empty() {
                self.demand(false, || format!("client {} did not end: {left:?}", place + 1));
            }
            self.record.report(&Fact::Client { client, at: self.sim.now(), what: ClientFact::Ended });
        }
        let (trouble, left) = (self.queue.trouble(), self.sim.tasks_of(self.operator));
        self.demand(left.is_empty(), || format!("the operator is not done: {trouble:?}; {left:?}"));
        for place in self.membership.in_use() {
            // A node that finds damage on its own disk reports the damage and stays down until an operator
            // replaces it.
            if self.membership.is_damaged(place) && self.statuses.processes()[place] != Process::Up {
                continue;
            }
            // A node that lost its data asks its peers first and stops only after that.
            if self.membership.has_forgotten(place) {
                continue;
            }
            self.demand(self.statuses.status(place).serving, || {
                let how = &self.statuses.processes()[place];
                format!("node {} does not serve {RECOVERY:?} after all faults: {how:?}", place + 1)
            });
            self.audit_members(place);
        }
        self.audit_readmission();
        self.audit_backups();
        self.record.report(&Fact::Settled);
    }

    /// Demands that each node serves that has reached a quorum for long, also during a grace.
    pub(super) fn demand_service(&self) {
        let Some(owed) = self.watcher.due(SERVES_WITHIN).filter(|owed| owed.slowdown == 1) else { return };
        let places = (0..self.nodes.len()).filter(|place| owed.serving.contains(&node_id(*place)));
        for place in places.filter(|place| !self.statuses.status(*place).serving) {
            let what =
                format!("node {} has reached a quorum since {}, and does not serve", place + 1, owed.changed);
            self.record.break_promise("serves-while-a-quorum-is-connected", what);
        }
    }

    /// Demands that a node that lost its data votes again if its peers can readmit it.
    fn audit_readmission(&self) {
        let Some(place) = self.membership.votes_again() else { return };
        for other in self.membership.in_use() {
            let voters = self.statuses.status(other).voters;
            self.demand(voters.contains(&node_id(place)), || {
                let told = (node_id(place), node_id(other));
                format!("node {} lost its data and does not vote again, as node {} sees it", told.0, told.1)
            });
        }
    }

    /// Reports a broken promise unless `is_met` or the script may have destroyed a majority for good.
    fn demand(&self, is_met: bool, what: impl FnOnce() -> String) {
        if !is_met && !self.script.is_over_budget() && !self.has_lost_its_majority() {
            self.record.break_promise("liveness", what());
        }
    }

    /// Returns whether too few voters are left, since the cluster has left the state of one behind and others
    /// died for good before they gave that one a new state.
    fn has_lost_its_majority(&self) -> bool {
        let voters = self.membership.of_part(Part::Voter);
        let is_whole = |place: &usize| {
            self.statuses.processes()[*place] == Process::Up && !self.statuses.is_left_behind(*place)
        };
        let in_use = self.membership.in_use();
        let left =
            in_use.iter().filter(|place| voters.contains(&node_id(**place)) && is_whole(place)).count();
        in_use.iter().any(|place| self.statuses.is_left_behind(*place)) && left <= voters.len() / 2
    }

    /// Demands that a node knows exactly the members that the operator has requested.
    fn audit_members(&self, place: usize) {
        let status = self.statuses.status(place);
        let is_certain = |node: &_| self.membership.part(*node) != Part::Unknown;
        for (part, mut seen) in [(Part::Voter, status.voters), (Part::Learner, status.learners)] {
            seen.retain(is_certain);
            seen.sort_unstable();
            let asked = self.membership.of_part(part);
            self.demand(seen == asked, || {
                format!("node {} takes {seen:?} for the {part:?}s, the operator {asked:?}", node_id(place))
            });
        }
    }

    /// Stops the nodes, and checks that no task and no connection is left.
    pub(super) fn stop_in_order(&self) -> Result<(), Stop> {
        for place in 0..self.nodes.len() {
            self.statuses.order(place, Order::Stop);
            let (statuses, host) = (self.statuses.clone(), self.nodes[place]);
            self.sim.run_until_or(self.sim.now() + STOP, || statuses.processes()[place] != Process::Up)?;
            let left = self.sim.tasks_of(host);
            if self.statuses.processes()[place] == Process::Stopped && !left.is_empty() {
                self.leak(format!("node {} left tasks behind: {left:?}", place + 1));
            }
        }
        self.leave_no_connection()
    }

    /// Checks that no connection is left after all processes have ended and the kernels have given up their
    /// undelivered segments.
    fn leave_no_connection(&self) -> Result<(), Stop> {
        let everybody = self.nodes.iter().chain(&self.clients).chain([&self.operator]).chain(&self.bystander);
        everybody.copied().try_for_each(|host| self.sim.stop(host))?;
        self.sim.run_until(self.sim.now() + LAST_SEGMENTS)?;
        let open = self.sim.network().open_connections();
        if open > 0 {
            self.leak(format!("{open} connections {LAST_SEGMENTS:?} after the last process"));
        }
        Ok(())
    }

    fn leak(&self, what: String) {
        self.record.break_promise("no-leak", what);
    }
}
