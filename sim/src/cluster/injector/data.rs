//! Faults of a node's stored data: deletes the data, corrupts its end, or restores an older copy.

use std::time::Duration;

use rowlock_world::disk::DiskCopy;
use rowlock_world::executor::Halt;

use super::super::membership::Data;
use super::super::node_statuses::node_id;
use super::{Birth, End, Injector};
use crate::fault::{Down, Fault};
use crate::history::node::NodeFact;

impl Injector {
    /// Begins a fault of stored data.
    pub(super) fn begin_on_data(&mut self, fault: Fault) -> Result<(), Halt> {
        match fault {
            Fault::Wipe { target, lasts } => {
                for place in self.places(target) {
                    self.forgets(place, Data::Gone);
                    self.power_off(place, Down::For(lasts))?;
                    self.sim.disk(self.targets.nodes[place]).wipe();
                }
            }
            Fault::RotTail { target, lasts } => {
                for place in self.places(target) {
                    self.bring_to_rest(place, lasts);
                }
            }
            Fault::Restore { target, lasts } => {
                for place in self.places(target) {
                    let copy = self.sim.disk(self.targets.nodes[place]).copy();
                    self.later(lasts, End::RestoreCopy(place, copy));
                }
            }
            other => unreachable!("{other} is begun elsewhere"),
        }
        Ok(())
    }

    /// Marks the node at this place as returning with less data than before: the node may refuse to start.
    fn forgets(&mut self, place: usize, left: Data) {
        self.excused.insert(place);
        self.targets.membership.forget(place, left);
        self.targets.record.node(node_id(place), NodeFact::Forgot);
    }

    /// Restores an older disk copy. Never the leader's: the leader knows the entries acknowledged by its
    /// followers, and no node may know about entries that it has forgotten itself.
    pub(super) fn restore_copy(&mut self, place: usize, copy: DiskCopy) -> Result<(), Halt> {
        let host = self.targets.nodes[place];
        if !self.sim.is_up(host) || self.targets.statuses.leader().is_none_or(|leader| leader == place) {
            return Ok(());
        }
        self.forgets(place, Data::Older);
        self.sim.kill(host)?;
        self.sim.disk(host).restore(copy);
        self.start_later(Birth::Node(place), Down::For(Duration::from_millis(1)));
        Ok(())
    }
}
