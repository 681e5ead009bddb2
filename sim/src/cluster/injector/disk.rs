//! Faults of disks and of the machines around them, and an operator's actions on machines.

use std::time::Duration;

use rowlock_world::disk::Op;
use rowlock_world::executor::Halt;
use rowlock_world::time::HostId;

use super::super::node_statuses::Order;
use super::super::operator::Job;
use super::super::tokens;
use super::{Birth, End, Injector};
use crate::fault::{Down, Fault, Moment, Target};

impl Injector {
    pub(super) fn begin_on_disk(&mut self, fault: Fault) -> Result<(), Halt> {
        match fault {
            Fault::SlowDisk { target, times, lasts } => {
                for host in self.hosts(&[target]) {
                    self.sim.disk(host).set_pace(times);
                    self.later(lasts, End::FastDisk(host));
                }
            }
            Fault::SyncFailure { target, down } => {
                for place in self.places(target) {
                    self.excused.insert(place);
                    self.sim.disk(self.targets.nodes[place]).fail_syncs(1);
                    match down {
                        Down::For(lasts) => self.restart_after[place] = lasts,
                        Down::ForGood => self.targets.membership.lose(place),
                    }
                }
            }
            Fault::DiskFull { target, leaves_kib, lasts } => {
                for place in self.places(target) {
                    self.excused.insert(place);
                    let host = self.targets.nodes[place];
                    self.sim.disk(host).fill_up(u64::from(leaves_kib) << 10);
                    self.later(lasts, End::Room(host));
                }
            }
            Fault::BitRot { target, bits } => {
                for place in self.places(target) {
                    self.excused.insert(place);
                    self.targets.membership.damage(place);
                    let disk = self.sim.disk(self.targets.nodes[place]);
                    for _ in 0..bits {
                        // A damaged token is an unknown one, and its owner is refused.
                        disk.rot(|path| path != tokens::path());
                    }
                }
            }
            Fault::LoseDisk { target } => {
                for place in self.places(target) {
                    self.power_off(place, Down::ForGood)?;
                }
            }
            Fault::AddLearner { node } => self.begin_node(node - 1, Job::Learner(node - 1)),
            Fault::AddVoter { node } => self.begin_node(node - 1, Job::Voter(node - 1)),
            Fault::Remove { target } => {
                for place in self.places(target) {
                    self.excused.insert(place);
                    self.targets.queue.enqueue(Job::Remove(place));
                }
            }
            Fault::Replace { target, node } => {
                let lost = self.places(target).first().copied();
                let is_there =
                    |place: &usize| *place != node - 1 && self.targets.membership.is_in_use(*place);
                if let Some(old) = lost.filter(is_there) {
                    self.power_off(old, Down::ForGood)?;
                    self.begin_node(node - 1, Job::Replace { old, new: node - 1 });
                }
            }
            Fault::Readdress { target, lasts } => self.move_nodes(target, lasts),
            Fault::RestoreBackup { from, after, lasts } => self.begin_backup(from, after, lasts),
            Fault::Recover { target, lasts } => self.begin_recovery(target, lasts)?,
            other => self.begin_on_data(other)?,
        }
        Ok(())
    }

    /// Restarts nodes at another port and has the operator report the new address. An operator moves no node
    /// while an earlier change is pending: nodes that look for each other at outdated addresses would never
    /// meet.
    fn move_nodes(&mut self, target: Target, lasts: Duration) {
        if !self.targets.queue.is_idle() {
            self.trace("the operator is not done with earlier changes: no node moves".to_owned());
            return;
        }
        for place in self.places(target) {
            self.targets.membership.move_to_another_port(place);
            // The node hands over and ends by itself. A node that is down moves with its start.
            self.restart_after[place] = lasts;
            self.targets.statuses.order(place, Order::Restart);
            self.moving.push(place);
        }
    }

    /// Starts a node on a new machine, which joins as a learner by itself, and queues the rest for the
    /// operator.
    fn begin_node(&mut self, place: usize, job: Job) {
        if self.targets.membership.take_into_use(place) {
            self.later(Duration::ZERO, End::Start(Birth::Node(place)));
        }
        if self.targets.membership.is_in_use(place) {
            self.targets.queue.enqueue(job);
        }
    }
}

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
