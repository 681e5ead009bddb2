//! Bounds the log by bytes. openraft counts entries, and one entry may hold a hundred bytes or a megabyte: the snapshots
//! that it takes by itself would let a client that writes large znodes fill the memory of every node.

use std::sync::Arc;
use std::time::Duration;

use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::task::Shutdown;
use rowlock_env::time;

use super::Raft;
use crate::limits::{LOG_KEEP_BYTES, LOG_MEMORY_MAX_BYTES};
use crate::metrics::Metrics;
use crate::storage::LogStore;

/// How often the log is looked at.
const EVERY: Duration = Duration::from_millis(200);

/// What the task needs.
pub struct Compaction {
    /// Takes snapshots and purges.
    pub raft: Raft,
    /// Knows its size.
    pub log: LogStore,
    /// Knows the size of the last snapshot: writing more than that again and again would gain nothing.
    pub metrics: Arc<Metrics>,
}

impl Compaction {
    /// Runs until `shutdown`, or until Raft has stopped.
    pub async fn run(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = time::sleep(EVERY) => {}
            }
            if self.look().await.is_err() {
                return;
            }
        }
    }

    /// Takes one step towards a log within its bound: a snapshot first, then the purge.
    async fn look(&self) -> Result<(), ()> {
        let snapshot_bytes = usize::try_from(self.metrics.snapshot_bytes.get()).unwrap_or(usize::MAX);
        if self.log.bytes() <= LOG_MEMORY_MAX_BYTES.max(snapshot_bytes) {
            return Ok(());
        }
        let Some(upto) = self.log.purge_point(LOG_KEEP_BYTES) else { return Ok(()) };
        let snapshot = self.raft.metrics().borrow_watched().snapshot.as_ref().map_or(0, |id| id.index);
        let trigger = self.raft.trigger();
        // While one is being built, asking again does nothing.
        let step = if snapshot < upto { trigger.snapshot().await } else { trigger.purge_log(upto).await };
        step.map_err(|stopped| tracing::debug!(%stopped, "the log is not looked after any more"))
    }
}
