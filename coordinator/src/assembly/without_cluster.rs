//! Stands for the floor `cluster` in a build without it. The voters of the configuration form the cluster,
//! their membership stays, and nothing notices that a node has lost its data.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::facts;
use rowlock_env::time;
use rowlock_wal::entry::Member;
use rowlock_wal::{FolderState, StorageError};

use super::errors::{NodeError, StartError};
use super::open::Assembly;
use crate::config::{NodeConfig, NodeEntry};
use crate::node::admin::{Admin, NotBuilt};
use crate::node::apply::Observer;
use crate::node::context::NodeContext;
use crate::node::leader_duties::LeaderDuty;

/// Interval of the checks whether the node is a member.
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
}

/// A node without this floor has no operator.
pub(super) struct Operating;

pub(super) fn operator(_: &Arc<NodeContext>) -> Operating {
    Operating
}

/// Returns the failure of a data folder that does not accept a fact about the cluster.
pub(super) fn of_folder(error: StorageError) -> NodeError {
    NodeError::Disk(error.to_string())
}

/// The cluster's version stays, and nothing compares the nodes' states.
pub(super) fn leader_duties(_: &Arc<NodeContext>, _: &Operating) -> [Box<dyn LeaderDuty>; 0] {
    []
}

impl Assembly {
    pub(super) fn start_cluster(&self, _: &Operating) -> Arc<dyn Admin> {
        let ClusterFloor = self.cluster;
        Arc::new(NotBuilt)
    }

    /// Takes part at once, and forms the cluster if there is no log. All voters form the same one.
    pub(super) fn enter_cluster(&self) {
        let (node, failure) = (self.context.clone(), self.failure.clone());
        self.tasks.spawn_until_shutdown("bootstrap", async move {
            if let Err(error) = enter(&node).await {
                failure.fail(of_folder(error));
            }
        });
    }
}

async fn enter(node: &NodeContext) -> Result<(), StorageError> {
    let folder = node.peers.folder();
    folder.rise_to(FolderState::Admitted).await?;
    node.admission.grant();
    let voters = node.config.nodes.iter().filter(|node| !node.learner);
    let voters = voters.map(|node| (node.id, member(node))).collect();
    // Refused if there is a log, or another node has formed the cluster meanwhile.
    if let Err(error) = facts::form(&node.raft, voters).await {
        tracing::debug!(%error, "the cluster has been formed before");
    }
    while !facts::has_joined(&node.raft, node.me) {
        time::sleep(JOINED_EVERY).await;
    }
    folder.rise_to(FolderState::Member).await.map(|_| ())
}

fn member(entry: &NodeEntry) -> Member {
    Member { peer_addr: entry.peer_addr.clone(), client_addr: entry.any_client_addr().to_owned() }
}
