//! Says when a node takes a snapshot, which lets the log behind it be purged: at intervals of entries,
//! and when the log has too many bytes, since one entry may hold a hundred bytes or a megabyte.
//!
//! openraft would count entries by itself, and all nodes would write their snapshots at the same entry.
//! Writing one costs processor and disk, so here each node has entries of its own for it, by its number: a
//! quorum is never busy with it because of the count alone.
//!
//! openraft also takes a snapshot that fails for the end of the node. So the snapshot is written here, and
//! openraft hears of it when it is on disk and known to be readable.
//!
//! Invariant: whatever fails here, the node goes on with its snapshot of before and all of the log behind it,
//! and tries again later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::backoff::Backoff;
use rowlock_env::choice::{self, Choice};
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_types::limits::{LOG_MEMORY_BYTES, LOG_MEMORY_MAX_BYTES};
use rowlock_types::metrics::Metrics;
use rowlock_types::pacing::SNAPSHOT_PAUSES;
use rowlock_wal::{Log, StorageError};

use super::Raft;
use crate::raft_types::LogId;

/// How often the log is looked at.
const EVERY: Duration = Duration::from_millis(200);

/// Divides the bytes that the log may have: a quarter stays behind a snapshot, for followers that are late.
const KEPT_PART: usize = 4;

// Less is kept than is allowed, and the bounds are in their order.
const _: () = assert!(KEPT_PART > 1);
const _: () = assert!(LOG_MEMORY_BYTES <= LOG_MEMORY_MAX_BYTES);

/// 2^64 divided by the golden ratio: multiples of it modulo 2^64 are spread evenly, however many there are.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Dependencies of the task.
pub struct Compaction {
    /// When snapshots are due.
    pub schedule: Schedule,
    /// Takes snapshots and purges.
    pub raft: Raft,
    pub log: Log,
    /// Knows the size of the last snapshot: writing more than that again and again would gain nothing.
    pub metrics: Arc<Metrics>,
    /// The log's part of the node's memory limit. A log that filled all of it would never get shorter.
    pub log_max: usize,
    /// Snapshots that have failed in a row.
    pub retry: Backoff,
}

impl Compaction {
    /// Runs until Raft has stopped.
    pub async fn run(mut self) {
        loop {
            time::sleep_about(EVERY).await;
            if self.look().await.is_err() {
                return;
            }
        }
    }

    /// Takes a snapshot if one is due.
    async fn look(&mut self) -> Result<(), ()> {
        let (applied, snapshot) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let index = |id: Option<&LogId>| id.map_or(0, |id| id.index);
            (index(metrics.last_applied.as_ref()), index(metrics.snapshot.as_ref()))
        };
        let snapshot = snapshot.max(self.schedule.written);
        let is_early = applied > snapshot && choice::taken(Choice::SnapshotEarly, 20);
        if !self.retry.is_pausing(time::now()) && (is_early || self.schedule.is_due(applied, snapshot)) {
            return self.take_snapshot().await;
        }
        if snapshot > 0 && choice::taken(Choice::LogPurged, 20) {
            return self.raft.trigger().purge_log(snapshot).await.map_err(stopped);
        }
        self.look_at_bytes(snapshot).await
    }

    /// Writes a snapshot of what is applied, and tells openraft of it. One that fails is tried again later.
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

    /// Takes one step towards a log within its bound: a snapshot first, then the purge.
    async fn look_at_bytes(&mut self, snapshot: u64) -> Result<(), ()> {
        let snapshot_bytes = usize::try_from(self.metrics.snapshot_bytes.get()).unwrap_or(usize::MAX);
        let most = self.schedule.most_bytes(snapshot_bytes).min(self.log_max);
        if self.log.bytes() <= most {
            return Ok(());
        }
        let Some(upto) = self.log.purge_point(most / KEPT_PART) else { return Ok(()) };
        if snapshot >= upto {
            return self.raft.trigger().purge_log(upto).await.map_err(stopped);
        }
        if self.retry.is_pausing(time::now()) { Ok(()) } else { self.take_snapshot().await }
    }
}

/// Why there is no new snapshot.
#[derive(Debug, thiserror::Error)]
pub enum NoSnapshot {
    /// It could not be written, or not be read back. Nothing has changed.
    #[error(transparent)]
    Failed(#[from] StorageError),
    #[error("{0}")]
    Stopped(String),
}

/// Writes a snapshot of what is applied now and tells openraft of it. Gives the index of the last entry in
/// it.
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
    tracing::debug!(%error, "the log is not looked after any more");
}

/// The entries, or bytes of them, after which a node takes snapshots. Pure.
#[derive(Debug)]
pub struct Schedule {
    /// The node's share of whatever nodes have different parts of: all of it would be 2^64.
    part: u64,
    every: u64,
    /// Added to an index, this makes a multiple of `every` due.
    ahead: u64,
    /// The last entry in the newest snapshot that was written here. openraft hears of it a little later.
    written: u64,
}

impl Schedule {
    /// The entries at which `node` takes snapshots: at other ones than another node.
    pub fn new(node: NodeId, every: u64) -> Schedule {
        assert!(every > 0, "a snapshot is taken after some entries");
        let part = GOLDEN.wrapping_mul(node.0);
        let ahead = share(every, part);
        assert!(ahead < every, "a node is ahead by less than a whole turn");
        Schedule { part, every, ahead, written: 0 }
    }

    /// Bytes of the log beyond which a snapshot is due, when the last one has `snapshot_bytes`. Writing a
    /// large state for a short log would gain nothing, and a log much longer than the state is only slower to
    /// start from.
    fn most_bytes(&self, snapshot_bytes: usize) -> usize {
        let most = LOG_MEMORY_MAX_BYTES.max(snapshot_bytes);
        let wanted = snapshot_bytes.saturating_mul(2).clamp(LOG_MEMORY_BYTES, most);
        // All nodes have the same log: up to an eighth less, so that they do not all write at the same time.
        let less = usize::try_from(share(wanted as u64 / 8, self.part)).unwrap_or(0);
        assert!(less <= wanted / 8, "nodes differ by an eighth at most");
        wanted - less
    }

    /// Whether a snapshot is to be written when `applied` is the last entry applied and `snapshot` the last
    /// one in the newest snapshot.
    fn is_due(&self, applied: u64, snapshot: u64) -> bool {
        self.turn(applied) > self.turn(snapshot)
    }

    fn turn(&self, index: u64) -> u64 {
        index.saturating_add(self.ahead) / self.every
    }
}

/// `part` 2^64ths of `whole`.
fn share(whole: u64, part: u64) -> u64 {
    u64::try_from((u128::from(whole) * u128::from(part)) >> 64).expect("Invariant: less than the whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries at which a node takes its snapshots, if it looks at each.
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
    fn each_node_takes_a_snapshot_every_so_many_entries_and_never_with_another() {
        let nodes: Vec<Vec<u64>> = (1..=5).map(|node| due(node, 1_000)).collect();
        for due in &nodes {
            assert!(due[0] <= 1_000 && due.windows(2).all(|two| two[1] - two[0] == 1_000), "{due:?}");
        }
        let mut all: Vec<u64> = nodes.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[1] - two[0] > 100), "{all:?}");
    }

    #[test]
    fn log_may_be_twice_the_snapshot_within_its_bounds_and_no_two_nodes_agree() {
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
    fn the_largest_index_and_a_snapshot_after_each_entry_are_in_order() {
        assert!(Schedule::new(NodeId(254), u64::MAX).is_due(u64::MAX, 0));
        assert_eq!(due(3, 1), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
