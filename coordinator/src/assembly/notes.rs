//! Records the cluster's id and version in the data folder.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time;
use rowlock_state::upgrade;
use rowlock_types::metrics::Metrics;
use rowlock_wal::{Folder, StorageError};

use crate::node::replica::Replica;

/// Interval of the comparisons between state and folder.
const EVERY: Duration = Duration::from_millis(100);

/// Task that records the cluster's id and version.
pub(super) struct ClusterNotes {
    pub(super) replica: Arc<Replica>,
    pub(super) folder: Folder,
    pub(super) metrics: Arc<Metrics>,
}

impl ClusterNotes {
    /// Returns when the node must stop: the folder belongs to another cluster than the state, or the disk
    /// fails.
    pub(super) async fn run(self) -> StorageError {
        loop {
            if let Err(error) = self.record_new_values().await {
                return error;
            }
            time::sleep_about(EVERY).await;
        }
    }

    /// Records new values. Waits while the disk is full.
    async fn record_new_values(&self) -> Result<(), StorageError> {
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
