//! Stops the parts of a node in order.
//!
//! Must never wait for a disk without a deadline: a node whose disk hangs ends like a killed node, and the
//! next start recovers from that.
//!
//! Before all other steps the node leaves in order, so that the other nodes need no timeout to detect it: the
//! node accepts no more requests from clients, answers the accepted ones, finishes the leader's work, and
//! hands leadership over. Leaving must never fail or take long: the other nodes handle a failure here like
//! the crash of a node.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::{time, worker};
use rowlock_wal::SnapshotStore;

use super::access::AccessFloor;
use super::open::AuditTask;
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

/// Time for the writes of this node's own clients to be answered.
const ANSWERS_DEADLINE: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Leaves within a few seconds at most.
pub(super) async fn leave(node: &NodeContext) {
    node.leaving.send(true);
    if time::timeout(ANSWERS_DEADLINE, clients_are_answered(node)).await.is_err() {
        tracing::info!("the last writes of some clients have an unknown outcome");
    }
    if node.leads()
        && !mutant::is(Mutant::StopWithoutHandOver)
        && let Some(next) = node.successor()
    {
        // If no node takes over, the others elect a leader.
        node.hand_over_to(next).await;
    }
}

/// Waits until no client of this node waits for the log. The node accepts no more requests meanwhile.
async fn clients_are_answered(node: &NodeContext) {
    while !node.pending.is_empty() {
        time::sleep(ASK_EVERY).await;
    }
}
