//! What the leader sees to without being asked: the cluster's id, the end of a restored cluster's grace,
//! the text in `/zookeeper/config`, the cluster's version, scheduled backups. And what every node does with
//! id and version: it notes them in its data folder.

mod backups;
mod founding;
mod zk_config;

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::{ClusterId, NodeId};
use rowlock_state::command::Command;
use rowlock_state::{ClusterVersion, upgrade};
use rowlock_types::metrics::Metrics;
use rowlock_wal::{Folder, StorageError};
use tokio::sync::mpsc;

use crate::replica::Replica;
use crate::upgrade::{Upgrades, of_the_cluster};
pub use backups::Backups;
use founding::Founding;

/// How often a node looks. What is due is rare, and a proposal that got lost is made again.
const EVERY: Duration = Duration::from_millis(100);

/// What the task needs.
pub struct LeaderDuties {
    /// This node.
    pub me: NodeId,
    /// The membership.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// The state as it is now.
    pub replica: Arc<Replica>,
    /// Where the cluster's id is noted.
    pub folder: Folder,
    /// Where commands go.
    pub proposals: mpsc::Sender<TermBatch>,
    /// When the version of the cluster is raised.
    pub upgrades: Arc<Upgrades>,
    /// Which version it is.
    pub metrics: Arc<Metrics>,
}

impl LeaderDuties {
    /// Runs until `shutdown`.
    ///
    /// # Errors
    /// The folder is of another cluster than the state, or the disk fails: the node must stop.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StorageError> {
        let mut leadership = self.leadership.clone();
        let mut founding = Founding::default();
        loop {
            let view = *leadership.borrow_and_update();
            let leads = view.ready && view.leader == Some(self.me);
            if leads {
                self.propose_what_is_due(view.term, &mut founding);
            }
            let (known, version) = {
                let state = self.replica.state.read();
                (state.cluster(), state.version().clone())
            };
            self.metrics.cluster_version.set(version.number.into());
            self.metrics.node_version.set(self.replica.versions.most.into());
            tokio::select! {
                biased;
                () = shutdown.wait() => return Ok(()),
                noted = self.note(known, version) => noted?,
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return Ok(()),
                changed = leadership.changed() => if changed.is_err() { return Ok(()) },
                () = time::sleep_about(EVERY) => {}
            }
        }
    }

    /// Waits while the disk is full.
    async fn note(&self, known: Option<ClusterId>, version: ClusterVersion) -> Result<(), StorageError> {
        if let Some(id) = known {
            self.folder.note_cluster(id).await?;
        }
        if version.number > self.noted_version() {
            tracing::info!(
                version = version.number,
                release = version.release,
                "the cluster has gone over to a version"
            );
            self.folder.note_version(version).await?;
        }
        Ok(())
    }

    fn noted_version(&self) -> u16 {
        self.folder.version().map_or(upgrade::FIRST, |version| version.number)
    }

    fn propose_what_is_due(&self, term: u64, founding: &mut Founding) {
        // On the way from one set of voters to another: what is written stands until the new set is in force.
        let members = facts::settled_members(&self.raft);
        let state = self.replica.state.read();
        let config = members.and_then(|(members, version)| zk_config::due(&state, &members, version));
        let founding = founding.due(&state, term, time::now());
        drop(state);
        let raised = self.upgrades.due(term, time::now());
        let due: Vec<Command> = founding.into_iter().chain(config).chain(raised).collect();
        if !due.is_empty() {
            // A full queue: tried again.
            let proposals = due.into_iter().map(of_the_cluster).collect();
            let _ = self.proposals.try_send(TermBatch { term, proposals });
        }
    }
}
