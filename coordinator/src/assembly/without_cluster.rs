//! Stands for the floor `cluster` in a build without it. The voters of the configuration form the cluster,
//! their membership stays, and nothing notices that a node has lost its data.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_types::member::Member;
use rowlock_wal::{FolderState, StorageError};
use tokio::sync::mpsc;

use super::parts::{Parts, fail};
use super::wiring::Wires;
use super::{NodeError, StartError};
use crate::config::{NodeConfig, NodeEntry};
use crate::node::admin::Admin;
use crate::node::apply::Observer;
use crate::node::hand_over::HandOver;
use crate::node::leader_duties::{Duty, RaisedVersion};
use crate::node::replica::Replica;

/// How often a node looks whether it is a member.
const JOINED_EVERY: Duration = Duration::from_millis(500);

pub(super) struct ClusterFloor;

impl ClusterFloor {
    pub(super) fn new(config: &NodeConfig, _: u64) -> Result<ClusterFloor, StartError> {
        let settings = [
            (config.learner, "learner"),
            (config.discovery.is_some(), "[cluster]"),
            (config.backup.every_ms.is_some(), "[backup]"),
        ];
        match settings.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, setting)) => Err(StartError::NotBuilt { setting, feature: "cluster" }),
            None => Ok(ClusterFloor),
        }
    }

    pub(super) fn observers(&self) -> [Arc<dyn Observer>; 0] {
        []
    }

    pub(super) fn duties(&self, _: &Raft, _: &Arc<Replica>) -> [Box<dyn Duty>; 0] {
        []
    }
}

/// No operator is there. The signal that he would give is kept open, and never fires.
pub(super) type Operating = Arc<watch::Sender<bool>>;

/// The admin of a node without operators, which refuses what they want.
struct NoOperator {
    _operator: Operating,
}

impl Admin for NoOperator {}

/// The error of a folder that does not take what it must hold.
pub(super) fn of_folder(error: StorageError) -> NodeError {
    NodeError::Disk(error.to_string())
}

/// The version of the cluster, which stays.
pub(super) fn raised(_: &Operating) -> RaisedVersion {
    Box::new(|_, _| None)
}

impl Parts {
    pub(super) fn operator(
        &self,
        _: &NodeConfig,
        _: HandOver,
        (drained, _): (watch::Sender<bool>, mpsc::Sender<TermBatch>),
    ) -> Operating {
        Arc::new(drained)
    }

    pub(super) fn start_admin(&self, wires: &Wires) -> Arc<dyn Admin> {
        Arc::new(NoOperator { _operator: wires.operator.clone() })
    }

    /// The room that is kept for the log stays kept.
    pub(super) fn start_cluster_tasks(&self, _: &Wires) {
        let _ = &self.reserve;
    }

    pub(super) fn start_comparison(&self, _: &Wires) {}

    /// Takes part at once, and forms the cluster if there is no log. All voters form the same one.
    pub(super) fn start_bootstrap(&self, wires: &Wires) {
        let (raft, admission, folder) =
            (self.raft.clone(), self.admission.clone(), self.peers.folder().clone());
        let (failure, config) = (self.failure.0.clone(), wires.config.clone());
        self.tasks.spawn_until_shutdown("bootstrap", async move {
            if let Err(error) = folder.rise_to(FolderState::Admitted).await {
                return fail(&failure, of_folder(error));
            }
            admission.grant();
            let voters = config.nodes.iter().filter(|node| !node.learner);
            let voters = voters.map(|node| (node.id, member(node))).collect();
            // Refused if there is a log, or another node has formed the cluster meanwhile.
            if let Err(error) = facts::form(&raft, voters).await {
                tracing::debug!(%error, "the cluster has been formed before");
            }
            while !facts::has_joined(&raft, config.id) {
                time::sleep(JOINED_EVERY).await;
            }
            if let Err(error) = folder.rise_to(FolderState::Member).await {
                fail(&failure, of_folder(error));
            }
        });
    }
}

fn member(entry: &NodeEntry) -> Member {
    Member { peer_addr: entry.peer_addr.clone(), client_addr: entry.any_client_addr().to_owned() }
}
