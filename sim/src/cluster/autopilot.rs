//! Members that the leader changes by itself, as the operator learns of them.

use super::membership::Part;
use super::node_statuses::{Order, node_id};
use super::run::Run;

impl Run {
    /// Tells the operator about the leader's own changes of members. The machine of a removed node is not
    /// used again.
    pub(super) fn follow_autopilot(&mut self) {
        let (Some(_), Some(members)) = (self.shape.autopilot, self.record.members()) else { return };
        for place in 0..self.nodes.len() {
            let (node, known) = (node_id(place), self.membership.part(node_id(place)));
            let part = if members.voters[0].contains(&node) { Part::Voter } else { Part::Learner };
            if part == Part::Voter || members.learners.contains(&node) {
                self.membership.set_part(place, part);
            } else if known == Part::Voter && self.shape.removes_down_to().is_some() {
                self.membership.set_part(place, Part::Stranger);
                self.membership.lose(place);
                self.statuses.order(place, Order::Stop);
                self.injector.excuse(place);
            }
        }
    }
}
