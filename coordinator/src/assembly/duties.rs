//! Starts what a leader does without being asked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::cluster;
use super::notes::ClusterNotes;
use super::parts::{Parts, fail};
use super::wiring::Wires;
use crate::node::leader_duties::{ClusterDuty, Duty, LeaderDuties};
use crate::node::lock_sweep::LockSweep;
use crate::node::slow_links::SlowLinks;
use crate::node::sweep::Sweep;

impl Parts {
    pub(super) fn start_leader_duties(&self, wires: &Wires) {
        let (replica, clock) = (&self.replica, &self.clock);
        let sweep_every = Duration::from_millis(wires.config.znodes.sweep_interval_ms);
        let lock_sweep = LockSweep { replica: replica.clone(), clock: clock.clone() };
        let mut duties: Vec<Box<dyn Duty>> = vec![
            Box::new(lock_sweep),
            Box::new(ClusterDuty::new(self.raft.clone(), replica.clone(), cluster::raised(&wires.operator))),
        ];
        duties.extend(self.cluster.duties(&self.raft, replica));
        duties.push(Box::new(Sweep::new(replica.clone(), clock.clone(), sweep_every)));
        let duties = LeaderDuties {
            me: wires.config.id,
            leadership: wires.leadership.clone(),
            proposals: wires.proposals.clone(),
            alarm: self.lock_rings.clone(),
            duties,
        };
        self.tasks.spawn_until_shutdown("leader-duties", duties.run());
        self.start_cluster_tasks(wires);
        self.start_notes();
        let links = SlowLinks { peers: self.peers.clone(), raft: wires.config.raft, told: BTreeSet::new() };
        self.tasks.spawn_until_shutdown("slow-links", links.run());
    }

    fn start_notes(&self) {
        let (replica, folder) = (self.replica.clone(), self.peers.folder().clone());
        let notes = ClusterNotes { replica, folder, metrics: self.metrics.clone() };
        let failure = self.failure.0.clone();
        self.tasks.spawn_until_shutdown("cluster-notes", async move {
            let error = notes.run().await;
            fail(&failure, cluster::of_folder(error));
        });
    }
}
