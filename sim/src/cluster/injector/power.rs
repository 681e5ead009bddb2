//! Power losses of a node's machine, at once or at a certain moment.

use std::time::Duration;

use rowlock_world::disk::Op;
use rowlock_world::executor::Halt;
use rowlock_world::time::HostId;

use super::{Birth, End, Injector};
use crate::fault::{Down, Moment};

/// Time after which the power goes even if the armed moment has not come.
const MOMENT_WITHIN: Duration = Duration::from_secs(3);

/// A node that loses power at a certain moment.
pub(super) struct Armed {
    pub(super) down: Down,
    /// Whether the node has run since the arming. If so, its next stop means that the moment has come.
    was_up: bool,
}

impl Injector {
    /// Returns running hosts whose power goes at a certain moment.
    pub fn armed(&mut self) -> Vec<HostId> {
        let (sim, nodes) = (&self.sim, &self.targets.nodes);
        self.armed.iter_mut().for_each(|(place, armed)| armed.was_up |= sim.is_up(nodes[*place]));
        let up = self.armed.iter().filter(|(_, armed)| armed.was_up);
        up.map(|(place, _)| nodes[*place]).collect()
    }

    /// Schedules restarts of nodes whose moment has come.
    pub fn notice_cuts(&mut self) {
        let (sim, nodes) = (&self.sim, &self.targets.nodes);
        let is_gone = |place: usize, armed: &Armed| armed.was_up && !sim.is_up(nodes[place]);
        let all = self.armed.iter();
        let gone: Vec<usize> =
            all.filter(|(place, armed)| is_gone(**place, armed)).map(|(place, _)| *place).collect();
        for place in gone {
            if let Some(armed) = self.armed.remove(&place) {
                self.start_later(Birth::Node(place), armed.down);
            }
        }
    }

    /// Arms a power loss at the n-th such moment, or after [`MOMENT_WITHIN`].
    pub(super) fn arm(&mut self, place: usize, moment: Moment, nth: u64, down: Down) {
        let host = self.targets.nodes[place];
        match moment {
            Moment::Message => self.sim.cut_power_at_message(host, nth),
            Moment::DiskOperation => self.sim.cut_power_at_operation(host, nth, |_| true),
            Moment::Flush => {
                self.sim.cut_power_at_operation(host, nth, |op| matches!(op, Op::Sync | Op::SyncDir));
            }
            Moment::Rename => self.sim.cut_power_at_operation(host, nth, |op| op == Op::Rename),
        }
        self.armed.insert(place, Armed { down, was_up: false });
        self.later(MOMENT_WITHIN, End::CutPower(place));
    }

    /// Cuts the machine's power now.
    pub(super) fn power_off(&mut self, place: usize, down: Down) -> Result<(), Halt> {
        let host = self.targets.nodes[place];
        self.sim.power_off(host)?;
        self.start_later(Birth::Node(place), down);
        Ok(())
    }
}
