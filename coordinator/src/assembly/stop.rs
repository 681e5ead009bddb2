//! Stops the parts of a node in order.
//!
//! Must never wait for a disk without a deadline: a node whose disk hangs ends like a killed node, and the
//! next start recovers from that.

use std::time::Duration;

use rowlock_consensus::raft::Raft;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{time, worker};
use rowlock_wal::{Log, SnapshotStore};

use super::access::AccessFloor;
use super::audit::AuditTask;
use super::leave::Leave;

/// Time limit for Raft's stop.
const RAFT_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit for the last flushes.
const DISK_DEADLINE: Duration = Duration::from_secs(5);

/// Shuts down all parts when `shutdown` fires.
pub(super) async fn stop_at(
    shutdown: Shutdown,
    leave: Leave,
    (tasks, audit): (TaskGroup, AuditTask),
    raft: Raft,
    access: AccessFloor,
    (snapshots, log): (SnapshotStore, Log),
) {
    shutdown.wait().await;
    leave.run().await;
    tasks.stop().await;
    audit.finish().await;
    if time::timeout(RAFT_DEADLINE, raft.shutdown()).await.is_err() {
        tracing::warn!("Raft did not stop in time");
    }
    access.close().await;
    // The log holds the lock on the folder, so it closes last.
    let closing = async {
        worker::run_blocking("snapshots-close", move || snapshots.close()).await;
        log.close().await;
    };
    if time::timeout(DISK_DEADLINE, closing).await.is_err() {
        tracing::warn!(
            "the disk did not answer in time: the log was not closed, which loses nothing acknowledged"
        );
    }
    tracing::info!("stopped");
}
