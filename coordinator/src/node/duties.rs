//! Starts the leader's duties and the node's periodic tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::notes::ClusterNotes;
use super::parts::{Parts, fail};
use super::wiring::Wires;
use crate::autopilot::Autopilot;
use crate::bootstrap::BootstrapError;
use crate::comparison::DigestMarks;
use crate::disk_watch::DiskWatch;
use crate::leader_duties::{Backups, ClusterDuty, LeaderDuties};
use crate::lock_sweep::LockSweep;
use crate::slow_links::SlowLinks;
use crate::sweep::Sweep;

impl Parts {
    pub(super) fn start_leader_duties(&self, wires: &Wires) {
        let (replica, clock) = (&self.replica, &self.clock);
        let sweep_every = Duration::from_millis(wires.config.znodes.sweep_interval_ms);
        let upgrades = wires.operator.upgrades.clone();
        let duties = LeaderDuties {
            me: wires.config.id,
            leadership: wires.leadership.clone(),
            proposals: wires.proposals.clone(),
            alarm: self.lock_rings.clone(),
            duties: vec![
                Box::new(LockSweep { replica: replica.clone(), clock: clock.clone() }),
                Box::new(ClusterDuty::new(self.raft.clone(), replica.clone(), upgrades)),
                Box::new(DigestMarks::new(self.raft.clone(), replica.clone())),
                Box::new(Sweep::new(replica.clone(), clock.clone(), sweep_every)),
            ],
        };
        self.tasks.spawn_until_shutdown("leader-duties", duties.run());
        self.start_backups(wires);
        self.start_disk_watch(wires);
        self.start_autopilot(wires);
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
            fail(&failure, BootstrapError::from(error).into());
        });
    }

    fn start_disk_watch(&self, wires: &Wires) {
        let watch = DiskWatch {
            reserve: self.reserve.clone(),
            limits: wires.config.limits,
            replica: self.replica.clone(),
            hand_over: wires.operator.hand_over.clone(),
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn_until_shutdown("disk-watch", watch.run());
    }

    fn start_autopilot(&self, wires: &Wires) {
        let autopilot = Autopilot {
            me: wires.config.id,
            config: wires.config.autopilot,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            quorum: self.quorum.clone(),
            reconfigurer: wires.reconfigurer.clone(),
            peers: self.peers.clone(),
            audit: self.trust.audit.handle.clone(),
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn_until_shutdown("autopilot", autopilot.run());
    }

    fn start_backups(&self, wires: &Wires) {
        let config = &wires.config;
        let Some(every_ms) = config.backup.every_ms else { return };
        let backups = Backups {
            me: config.id,
            cluster: config.name.clone(),
            folder: config.backup.folder(config.id, &config.data_dir),
            every: Duration::from_millis(every_ms),
            keep: config.backup.keep as usize,
            leadership: wires.leadership.clone(),
            replica: self.replica.clone(),
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn("backups", backups.run(self.tasks.shutdown().clone()));
    }
}
