//! What a node notes in its data folder about its cluster: its id, and the version that it writes.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time;
use rowlock_state::upgrade;
use rowlock_types::metrics::Metrics;
use rowlock_wal::{Folder, StorageError};

use crate::replica::Replica;

/// How often a node compares its state with the notes.
const EVERY: Duration = Duration::from_millis(100);

/// The task that writes the notes.
pub(super) struct ClusterNotes {
    pub(super) replica: Arc<Replica>,
    pub(super) folder: Folder,
    pub(super) metrics: Arc<Metrics>,
}

impl ClusterNotes {
    /// Returns when the node must stop: the folder is of another cluster than the state, or the disk fails.
    pub(super) async fn run(self) -> StorageError {
        loop {
            if let Err(error) = self.note().await {
                return error;
            }
            time::sleep_about(EVERY).await;
        }
    }

    /// Waits while the disk is full.
    async fn note(&self) -> Result<(), StorageError> {
        let (known, version) = {
            let state = self.replica.state.read();
            (state.cluster(), state.version().clone())
        };
        self.metrics.cluster_version.set(version.number.into());
        self.metrics.node_version.set(self.replica.versions.most.into());
        if let Some(id) = known {
            self.folder.record_cluster(id).await?;
        }
        let noted = self.folder.version().map_or(upgrade::FIRST, |version| version.number);
        if version.number > noted {
            tracing::info!(
                version = version.number,
                release = version.release,
                "the cluster has gone over to a version"
            );
            self.folder.record_version(version).await?;
        }
        Ok(())
    }
}
