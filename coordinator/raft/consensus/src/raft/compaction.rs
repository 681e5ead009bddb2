//! Schedule of snapshots, which allow the log behind them to be purged: at intervals of entries, and when the
//! log has too many bytes, since one entry may hold a hundred bytes or a megabyte.
//!
//! openraft alone would count entries, and all nodes would write their snapshots at the same entry. Writing a
//! snapshot costs processor and disk time, so each node offsets its schedule by its number: the schedule
//! never occupies a quorum at once.
//!
//! openraft also stops the node after a failed snapshot. So this module writes the snapshot, and reports the
//! snapshot to openraft once it is on disk and verified.
//!
//! Invariant: after any failure here the node continues with its previous snapshot and the whole log behind
//! that, and retries later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::backoff::Backoff;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::LOG_MEMORY_BYTES;
use rowlock_proto::NodeId;
use rowlock_wal::{Log, StorageError};

use super::Raft;
use crate::limits::{LOG_MEMORY_MAX_BYTES, SNAPSHOT_PAUSES};
use crate::raft_types::LogId;

/// Period of the checks.
const EVERY: Duration = time::BEAT.saturating_mul(2);

/// Divisor of the log's byte limit: a quarter stays behind a snapshot, for late followers.
const KEPT_PART: usize = 4;

// Checks that less is kept than allowed, and that the bounds are ordered.
const _: () = assert!(KEPT_PART > 1);
const _: () = assert!(LOG_MEMORY_BYTES <= LOG_MEMORY_MAX_BYTES);

/// 2^64 divided by the golden ratio: multiples modulo 2^64 are spread evenly, for any number of nodes.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Duty that bounds the log.
pub struct Compaction {
    pub schedule: Schedule,
    pub raft: Raft,
    pub log: Log,
    /// Source of the last snapshot's size: rewriting a larger snapshot for a shorter log gains nothing.
    pub metrics: Arc<Metrics>,
    /// The log's share of the node's memory limit. A log that filled the whole limit would never get shorter.
    pub log_max: usize,
    /// Pauses after failed snapshots.
    pub retry: Backoff,
}

impl Duty for Compaction {
    /// Means that Raft has stopped.
    type End = ();

    async fn turn(&mut self) -> Result<Option<Instant>, ()> {
        self.compact_if_due().await?;
        Ok(Some(time::about(EVERY)))
    }
}

impl Compaction {
    /// Takes a snapshot or purges the log if due. The error means that Raft has stopped.
    async fn compact_if_due(&mut self) -> Result<(), ()> {
        let (applied, snapshot) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let index = |id: Option<&LogId>| id.map_or(0, |id| id.index);
            (index(metrics.last_applied.as_ref()), index(metrics.snapshot.as_ref()))
        };
        let snapshot = snapshot.max(self.schedule.written);
        let is_early = applied > snapshot && choice::taken(Choice::SnapshotEarly, 20);
        if decides!(
            "snapshot-is-due",
            !self.retry.is_pausing(time::now()) && (is_early || self.schedule.is_due(applied, snapshot))
        ) {
            return self.take_snapshot().await;
        }
        if snapshot > 0 && choice::taken(Choice::LogPurged, 20) {
            return self.raft.trigger().purge_log(snapshot).await.map_err(stopped);
        }
        self.limit_bytes(snapshot).await
    }

    /// Writes a snapshot of the applied state, and reports the snapshot to openraft. Schedules a retry after
    /// a failure.
    async fn take_snapshot(&mut self) -> Result<(), ()> {
        match take_snapshot(&self.raft).await {
            Ok(index) => {
                assert!(index >= self.schedule.written, "a snapshot reaches as far as the one before it");
                self.schedule.written = index;
                self.retry.succeeded();
                Ok(())
            }
            Err(NoSnapshot::Stopped(why)) => {
                stopped(why);
                Err(())
            }
            Err(NoSnapshot::Failed(error)) => {
                let pause = self.retry.failed(time::now(), &SNAPSHOT_PAUSES);
                assert!(pause <= *SNAPSHOT_PAUSES.end(), "a snapshot is tried again in time");
                tracing::error!(
                    %error,
                    again_in_s = pause.as_secs(),
                    "a snapshot could not be written. The node goes on with the one before it and keeps its log, which \
                     grows meanwhile: free room on the disk, or check it; if the snapshot was refused, report that"
                );
                Ok(())
            }
        }
    }

    /// Takes one step towards a log within its byte limit: first a snapshot, then a purge.
    async fn limit_bytes(&mut self, snapshot: u64) -> Result<(), ()> {
        let snapshot_bytes = usize::try_from(self.metrics.snapshot_bytes.get()).unwrap_or(usize::MAX);
        let most = self.schedule.most_bytes(snapshot_bytes).min(self.log_max);
        if self.log.tally().bytes() <= most as u64 {
            return Ok(());
        }
        let Some(upto) = self.log.purge_point(most / KEPT_PART) else { return Ok(()) };
        if snapshot >= upto {
            return self.raft.trigger().purge_log(upto).await.map_err(stopped);
        }
        if self.retry.is_pausing(time::now()) { Ok(()) } else { self.take_snapshot().await }
    }
}

/// Reason why no snapshot was written.
#[derive(Debug, thiserror::Error)]
pub enum NoSnapshot {
    /// The snapshot could not be written, or not be read back. Nothing has changed.
    #[error(transparent)]
    Failed(#[from] StorageError),
    #[error("{0}")]
    Stopped(String),
}

/// Writes a snapshot of the applied state and reports the snapshot to openraft. Returns the index of the
/// snapshot's last entry.
pub async fn take_snapshot(raft: &Raft) -> Result<u64, NoSnapshot> {
    let ended = |error: &dyn std::fmt::Display| NoSnapshot::Stopped(error.to_string());
    let frozen = raft.with_state_machine(|machine| {
        let writer = machine.freeze();
        async move { writer }.boxed()
    });
    let writer = frozen.await.map_err(|error| ended(&error))?;
    let written = writer.write().await?;
    raft.trigger().snapshot().await.map_err(|error| ended(&error))?;
    Ok(written.meta().last_log_id.map_or(0, |last| last.index))
}

fn stopped(error: impl std::fmt::Display) {
    tracing::debug!(%error, "log compaction stopped");
}

/// Schedule of snapshots by entries and bytes. Pure.
#[derive(Debug)]
pub struct Schedule {
    /// The node's fraction of any quantity, in units of 2^-64: nodes have different fractions.
    part: u64,
    every: u64,
    /// Offset of the node: a snapshot is due when index plus offset passes a multiple of `every`.
    ahead: u64,
    /// Last entry of the newest snapshot written here. openraft learns of the snapshot a little later.
    written: u64,
}

impl Schedule {
    /// Creates the schedule of `node`, with other entries than another node's.
    pub fn new(node: NodeId, every: u64) -> Schedule {
        assert!(every > 0, "a snapshot is taken after some entries");
        let part = GOLDEN.wrapping_mul(node.0);
        let ahead = share(every, part);
        assert!(ahead < every, "a node is ahead by less than a whole turn");
        Schedule { part, every, ahead, written: 0 }
    }

    /// Returns the size of the log, in bytes, beyond which a snapshot is due, when the last one has
    /// `snapshot_bytes`. Writing a large state for a short log would gain nothing, and a log much longer than
    /// the state only slows the start.
    fn most_bytes(&self, snapshot_bytes: usize) -> usize {
        let most = LOG_MEMORY_MAX_BYTES.max(snapshot_bytes);
        let wanted = snapshot_bytes.saturating_mul(2).clamp(LOG_MEMORY_BYTES, most);
        // All nodes have the same log: subtract up to an eighth, so that they write at different times.
        let less = usize::try_from(share(wanted as u64 / 8, self.part)).unwrap_or(0);
        assert!(less <= wanted / 8, "nodes differ by an eighth at most");
        wanted - less
    }

    /// Returns whether a snapshot is due when `applied` is the last applied entry and `snapshot` the last one
    /// in the newest snapshot.
    fn is_due(&self, applied: u64, snapshot: u64) -> bool {
        self.turn(applied) > self.turn(snapshot)
    }

    fn turn(&self, index: u64) -> u64 {
        index.saturating_add(self.ahead) / self.every
    }
}

/// Returns `whole` times `part` / 2^64.
fn share(whole: u64, part: u64) -> u64 {
    u64::try_from((u128::from(whole) * u128::from(part)) >> 64).expect("Invariant: less than the whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entries at which a node takes its snapshots, if each entry is checked.
    fn due(node: u64, every: u64) -> Vec<u64> {
        let schedule = Schedule::new(NodeId(node), every);
        let mut snapshot = 0;
        let is_due = |index: &u64| {
            let is_due = schedule.is_due(*index, snapshot);
            snapshot = if is_due { *index } else { snapshot };
            is_due
        };
        (0..10 * every).filter(is_due).collect()
    }

    #[test]
    fn nodes_take_periodic_snapshots_at_different_entries() {
        let nodes: Vec<Vec<u64>> = (1..=5).map(|node| due(node, 1_000)).collect();
        for due in &nodes {
            assert!(due[0] <= 1_000 && due.windows(2).all(|two| two[1] - two[0] == 1_000), "{due:?}");
        }
        let mut all: Vec<u64> = nodes.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[1] - two[0] > 100), "{all:?}");
    }

    #[test]
    fn the_log_limit_is_twice_the_snapshot_and_differs_by_node() {
        let most = |node, snapshot| Schedule::new(NodeId(node), 1_000).most_bytes(snapshot);
        for (snapshot, wanted) in [
            (0, LOG_MEMORY_BYTES),
            (LOG_MEMORY_BYTES, 2 * LOG_MEMORY_BYTES),
            (LOG_MEMORY_MAX_BYTES - 1, LOG_MEMORY_MAX_BYTES),
            (3 * LOG_MEMORY_MAX_BYTES, 3 * LOG_MEMORY_MAX_BYTES),
            (usize::MAX, usize::MAX),
        ] {
            let mut nodes: Vec<usize> = (1..=5).map(|node| most(node, snapshot)).collect();
            assert!(nodes.iter().all(|most| (wanted / 8 * 7..=wanted).contains(most)), "{nodes:?}");
            nodes.sort_unstable();
            assert!(nodes.windows(2).all(|two| two[1] - two[0] > wanted / 100), "{nodes:?}");
        }
    }

    #[test]
    fn a_snapshot_stays_due_until_it_is_written() {
        let schedule = Schedule::new(NodeId(1), 100);
        assert!(schedule.is_due(150, 0) && schedule.is_due(160, 0), "it is due until it is written");
    }

    #[test]
    fn the_largest_index_and_the_shortest_period_work() {
        assert!(Schedule::new(NodeId(254), u64::MAX).is_due(u64::MAX, 0));
        assert_eq!(due(3, 1), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
