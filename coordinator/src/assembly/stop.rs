//! Stops the parts of a node in order.
//!
//! Must never wait for a disk without a deadline: a node whose disk hangs ends like a killed node, and the
//! next start recovers from that.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{time, worker};
use rowlock_wal::SnapshotStore;

use super::access::AccessFloor;
use super::audit::AuditTask;
use super::leave::leave;
use crate::node::context::NodeContext;

/// Time limit for Raft's stop.
const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit for the last flushes.
const DISK_DEADLINE: Duration = Duration::from_secs(5);

/// Shuts down all parts when `shutdown` fires.
pub(super) async fn stop_at(
    shutdown: Shutdown,
    node: Arc<NodeContext>,
    (tasks, audit, access, snapshots): (TaskGroup, AuditTask, AccessFloor, SnapshotStore),
) {
    shutdown.wait().await;
    leave(&node).await;
    tasks.stop().await;
    audit.finish().await;
    if time::timeout(RAFT_DEADLINE, node.raft.shutdown()).await.is_err() {
        tracing::warn!("Raft did not stop in time");
    }
    access.close().await;
    // The log holds the lock on the folder, so it closes last.
    let closing = async {
        worker::run_blocking("snapshots-close", move || snapshots.close()).await;
        node.log.close().await;
    };
    if time::timeout(DISK_DEADLINE, closing).await.is_err() {
        tracing::warn!(
            "the disk did not answer in time: the log was not closed, which loses nothing acknowledged"
        );
    }
    tracing::info!("stopped");
}
