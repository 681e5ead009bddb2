//! Wires the floor `cluster` to a node: coming in, membership, operators, upgrades, comparison.
//! `without_cluster.rs` stands here in a build without that feature.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::Raft;
use rowlock_env::sync::watch;
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_types::limits::{OPERATIONS_QUEUE_MAX, RECONFIG_QUEUE_MAX};
use rowlock_types::member::Member;
use rowlock_types::operation::Operation;
use rowlock_types::reconfiguration::Wanted;
use rowlock_wal::StorageError;
use tokio::sync::mpsc;

use super::parts::{Parts, fail};
use super::wiring::Wires;
use super::{Node, NodeError, StartError};
use crate::cluster::autopilot::Autopilot;
use crate::cluster::backups::Backups;
use crate::cluster::bootstrap::{Bootstrap, BootstrapError, Founders};
use crate::cluster::comparison::{Comparison, DigestMarks, Marks};
use crate::cluster::disk_watch::DiskWatch;
use crate::cluster::operations::log_level::{LogLevel, LogSwitch};
use crate::cluster::operations::{Operations, Operator};
use crate::cluster::reconfig::Reconfig;
use crate::cluster::upgrade::Upgrades;
use crate::config::{Discovery, NodeConfig};
use crate::node::admin::{Admin, Ask, Operated};
use crate::node::apply::Observer;
use crate::node::end_session::EndSession;
use crate::node::hand_over::HandOver;
use crate::node::leader_duties::{Duty, RaisedVersion};
use crate::node::replica::Replica;

/// Memory of the floor, there before the first task runs.
pub(super) struct ClusterFloor {
    marks: Arc<Marks>,
    founders: Founders,
}

impl ClusterFloor {
    pub(super) fn new(config: &NodeConfig, incarnation: u64) -> Result<ClusterFloor, StartError> {
        let marks = Arc::new(Marks::new(config.id, incarnation));
        Ok(ClusterFloor { marks, founders: Founders::default() })
    }

    pub(super) fn observers(&self) -> [Arc<dyn Observer>; 1] {
        [self.marks.clone()]
    }

    pub(super) fn duties(&self, raft: &Raft, replica: &Arc<Replica>) -> [Box<dyn Duty>; 1] {
        [Box::new(DigestMarks::new(raft.clone(), replica.clone()))]
    }
}

impl Node {
    /// Lets operators change the program's log filter (`rowlock log-level`). Before this call the node
    /// refuses such requests. The first switch wins.
    pub fn set_log_switch(&self, switch: Arc<dyn LogSwitch>) {
        self.log_level.set_switch(switch);
    }
}

/// The queues of the tasks that carry requests out.
struct AdminQueues {
    reconfig: mpsc::Sender<Ask<Wanted>>,
    operations: mpsc::Sender<Ask<Operation>>,
    operator: Arc<Operator>,
    discovery: Option<Discovery>,
    founders: Founders,
}

impl Admin for AdminQueues {
    fn reconfigure(&self, ask: Ask<Wanted>) -> Result<(), ErrorCode> {
        self.reconfig.try_send(ask).map_err(|_| ErrorCode::ReconfigInProgress)
    }

    fn operate(&self, ask: Ask<Operation>) -> Result<(), ErrorCode> {
        self.operations.try_send(ask).map_err(|_| ErrorCode::ThrottledOp)
    }

    fn carry_out<'a>(&'a self, wanted: &'a Operation) -> Pin<Box<dyn Future<Output = Operated> + Send + 'a>> {
        Box::pin(self.operator.carry_out(wanted))
    }

    fn record_founder(&self, node: NodeId, member: Member) {
        if let Some(discovery) = &self.discovery {
            self.founders.record(discovery, node, member);
        }
    }
}

/// Carries out operations at this node.
pub(super) type Operating = Arc<Operator>;

/// The error of a folder that does not take what it must hold.
pub(super) fn of_folder(error: StorageError) -> NodeError {
    BootstrapError::from(error).into()
}

/// The version of the cluster, as the leader raises it.
pub(super) fn raised(operator: &Operating) -> RaisedVersion {
    let upgrades = operator.upgrades.clone();
    Box::new(move |term, now| upgrades.due(term, now))
}

impl Parts {
    pub(super) fn operator(
        &self,
        config: &NodeConfig,
        hand_over: HandOver,
        wires: (watch::Sender<bool>, mpsc::Sender<TermBatch>),
    ) -> Operating {
        let (drained, proposals) = wires;
        let ending = EndSession { replica: self.replica.clone(), proposer: hand_over.proposer.clone() };
        let upgrades = Upgrades::new(
            (config.id, config.upgrade),
            (self.raft.clone(), hand_over.leadership.clone()),
            self.replica.clone(),
            self.peers.clone(),
            proposals,
        );
        Arc::new(Operator {
            hand_over,
            upgrades: Arc::new(upgrades),
            registry: self.registry.clone(),
            ending,
            log_level: Arc::new(LogLevel::of(config.id)),
            drained,
        })
    }

    /// Starts the tasks that carry out what superusers want; returns the way to them.
    pub(super) fn start_admin(&self, wires: &Wires) -> Arc<dyn Admin> {
        let (reconfig, queue) = mpsc::channel(RECONFIG_QUEUE_MAX);
        let reconfigurations = Reconfig {
            me: wires.config.id,
            queue,
            leadership: wires.leadership.clone(),
            here: wires.reconfigurer.clone(),
            peers: self.peers.clone(),
            replica: self.replica.clone(),
        };
        self.tasks.spawn_until_shutdown("reconfig", reconfigurations.run());
        let (operations, queue) = mpsc::channel(OPERATIONS_QUEUE_MAX);
        let operator = wires.operator.clone();
        self.tasks.spawn_until_shutdown("log-level", operator.log_level.clone().run());
        let (me, leadership, peers) = (wires.config.id, wires.leadership.clone(), self.peers.clone());
        let passing_on = Operations { me, queue, leadership, here: operator.clone(), peers };
        self.tasks.spawn_until_shutdown("operations", passing_on.run());
        let (discovery, founders) = (wires.config.discovery.clone(), self.cluster.founders.clone());
        Arc::new(AdminQueues { reconfig, operations, operator, discovery, founders })
    }

    /// Starts the leader's tasks that wait for other nodes or for a disk.
    pub(super) fn start_cluster_tasks(&self, wires: &Wires) {
        self.start_backups(wires);
        self.start_disk_watch(wires);
        self.start_autopilot(wires);
    }

    pub(super) fn start_bootstrap(&self, wires: &Wires) {
        let (raft, peers) = (self.raft.clone(), self.peers.clone());
        let admission = self.admission.clone();
        let (config, founders) = (wires.config.clone(), self.cluster.founders.clone());
        let status = wires.status.clone();
        let bootstrap = Bootstrap { config, raft, peers, admission, founders, status };
        let (failure, shutdown) = (self.failure.0.clone(), self.tasks.shutdown().clone());
        self.tasks.spawn("bootstrap", async move {
            if let Err(error) = bootstrap.run(shutdown).await {
                fail(&failure, error.into());
            }
        });
    }

    pub(super) fn start_comparison(&self, wires: &Wires) {
        let (raft, marks) = (self.raft.clone(), self.cluster.marks.clone());
        let comparison = Comparison { raft, marks, proposer: wires.proposer.clone() };
        let failure = self.failure.0.clone();
        self.tasks.spawn_until_shutdown("comparison", async move {
            fail(&failure, NodeError::Differs(comparison.run().await));
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
