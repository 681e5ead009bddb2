//! Records the cluster's id and version in the data folder.

use std::sync::Arc;

use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::time::{self, Instant};
use rowlock_state::version;
use rowlock_wal::StorageError;

use crate::node::context::NodeContext;

/// Duty that keeps the folder's facts equal to the state. Ends when the node must stop: the folder belongs to
/// another cluster than the state, or the disk fails.
pub struct StoredFacts(pub Arc<NodeContext>);

impl Duty for StoredFacts {
    type End = StorageError;

    async fn turn(&mut self) -> Result<Option<Instant>, StorageError> {
        self.record_new_values().await?;
        Ok(Some(time::next_beat()))
    }
}

impl StoredFacts {
    /// Records new values. Waits while the disk is full.
    async fn record_new_values(&self) -> Result<(), StorageError> {
        let (node, folder) = (&self.0, self.0.peers.folder());
        let (known, version) = {
            let state = node.replica.state.read();
            (state.cluster(), state.version().clone())
        };
        node.metrics.cluster_version.set(version.number.into());
        node.metrics.node_version.set(node.replica.versions.most.into());
        if let Some(id) = known {
            folder.record_cluster(id).await?;
        }
        let recorded = folder.version().map_or(version::FIRST, |version| version.number);
        if decides!("version-is-newer-than-recorded", version.number > recorded) {
            tracing::info!(
                version = version.number,
                release = version.release,
                "the cluster has gone over to a version"
            );
            folder.record_version(version).await?;
        }
        Ok(())
    }
}
