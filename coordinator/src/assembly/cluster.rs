//! Wires the floor `cluster` to a node: coming in, membership, operators, upgrades, comparison.
//! `without_cluster.rs` stands here in a build without that feature.

use std::pin::Pin;
use std::sync::Arc;

use rowlock_consensus::operation::Operation;
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_wal::StorageError;
use rowlock_wal::entry::Member;
use tokio::sync::mpsc;

use super::errors::{NodeError, StartError};
use super::open::Assembly;
use crate::cluster::autopilot::Autopilot;
use crate::cluster::backups::Backups;
use crate::cluster::bootstrap::{Bootstrap, BootstrapError, Founders};
use crate::cluster::comparison::{Comparison, DigestMarks, Marks};
use crate::cluster::disk_watch::DiskWatch;
use crate::cluster::operations::{FilterReset, LogLevel, Operations, Operator};
use crate::cluster::reconfig::Reconfig;
use crate::cluster::upgrade::Upgrades;
use crate::config::{Discovery, NodeConfig};
use crate::limits::{OPERATIONS_QUEUE_MAX, RECONFIG_QUEUE_MAX};
use crate::node::admin::{Admin, Ask, Operated};
use crate::node::apply::Observer;
use crate::node::context::NodeContext;
use crate::node::leader_duties::LeaderDuty;

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

/// Operator of this node.
pub(super) type Operating = Arc<Operator>;

pub(super) fn operator(node: &Arc<NodeContext>) -> Operating {
    let (upgrades, log_level) = (Arc::new(Upgrades::new(node.clone())), Arc::new(LogLevel::of(node.me)));
    Arc::new(Operator { node: node.clone(), upgrades, log_level })
}

/// Returns the failure of a data folder that does not accept a fact about the cluster.
pub(super) fn of_folder(error: StorageError) -> NodeError {
    BootstrapError::from(error).into()
}

pub(super) fn leader_duties(node: &Arc<NodeContext>, operator: &Operating) -> [Box<dyn LeaderDuty>; 2] {
    [Box::new(operator.upgrades.clone()), Box::new(DigestMarks::new(node.clone()))]
}

impl Assembly {
    /// Starts the duties of this floor, and the tasks that carry out superusers' requests. Returns the queues
    /// of those requests.
    pub(super) fn start_cluster(&self, operator: &Operating) -> Arc<dyn Admin> {
        let (node, tasks) = (&self.context, &self.tasks);
        if let Some(backups) = Backups::scheduled(node.clone()) {
            tasks.spawn("backups", backups.run(tasks.shutdown().clone()));
        }
        tasks.spawn_duty("disk-watch", DiskWatch::new(node.clone()));
        tasks.spawn_duty("autopilot", Autopilot::new(node.clone()));
        tasks.spawn_duty("log-level", FilterReset::new(operator.log_level.clone()));
        let (reconfig, queue) = mpsc::channel(RECONFIG_QUEUE_MAX);
        tasks.spawn_until_shutdown("reconfig", Reconfig { node: node.clone(), queue }.run());
        let (operations, queue) = mpsc::channel(OPERATIONS_QUEUE_MAX);
        let passing_on = Operations { node: node.clone(), queue, here: operator.clone() };
        tasks.spawn_until_shutdown("operations", passing_on.run());
        let (discovery, founders) = (node.config.discovery.clone(), self.cluster.founders.clone());
        Arc::new(AdminQueues { reconfig, operations, operator: operator.clone(), discovery, founders })
    }

    /// Brings the node into its cluster, and compares its state with the other nodes from then on.
    pub(super) fn enter_cluster(&self) {
        let (node, failure, shutdown) =
            (self.context.clone(), self.failure.clone(), self.tasks.shutdown().clone());
        let bootstrap = Bootstrap { node: node.clone(), founders: self.cluster.founders.clone() };
        self.tasks.spawn("bootstrap", async move {
            if let Err(error) = bootstrap.run(shutdown).await {
                failure.fail(error.into());
            }
        });
        let (failure, comparison) =
            (self.failure.clone(), Comparison { node, marks: self.cluster.marks.clone() });
        self.tasks.spawn_until_shutdown("comparison", async move {
            failure.fail(NodeError::Differs(comparison.run().await));
        });
    }
}
