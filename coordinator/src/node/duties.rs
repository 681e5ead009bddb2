//! Starts what a leader does without being asked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::parts::{Parts, fail};
use super::wiring::Wires;
use crate::autopilot::Autopilot;
use crate::bootstrap::BootstrapError;
use crate::disk_watch::DiskWatch;
use crate::leader_duties::{Backups, LeaderDuties};
use crate::slow_links::SlowLinks;

impl Parts {
    pub(super) fn start_leader_duties(&self, wires: &Wires) {
        let duties = LeaderDuties {
            me: wires.config.id,
            raft: self.raft.clone(),
            leadership: wires.leadership.clone(),
            replica: self.replica.clone(),
            folder: self.peers.folder().clone(),
            proposals: wires.batcher.clone(),
            upgrades: wires.operator.upgrades.clone(),
            metrics: self.metrics.clone(),
        };
        self.start_backups(wires);
        self.start_disk_watch(wires);
        self.start_autopilot(wires);
        let links = SlowLinks { peers: self.peers.clone(), raft: wires.config.raft, told: BTreeSet::new() };
        self.tasks.spawn("slow-links", links.run(self.tasks.shutdown().clone()));
        let (failure, shutdown) = (self.failure.0.clone(), self.tasks.shutdown().clone());
        self.tasks.spawn("leader-duties", async move {
            if let Err(error) = duties.run(shutdown).await {
                fail(&failure, BootstrapError::Storage(error.to_string()).into());
            }
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
        self.tasks.spawn("disk-watch", watch.run(self.tasks.shutdown().clone()));
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
            audit: self.trust.audit.door.clone(),
            metrics: self.metrics.clone(),
        };
        self.tasks.spawn("autopilot", autopilot.run(self.tasks.shutdown().clone()));
    }

    fn start_backups(&self, wires: &Wires) {
        let config = &wires.config;
        let Some(every_ms) = config.backup.every_ms else { return };
        let backups = Backups {
            me: config.id,
            cluster: config.cluster.clone(),
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
