//! Says when a node takes a snapshot, which lets the log behind it be purged: every so many entries, and when the log has
//! too many bytes, since one entry may hold a hundred bytes or a megabyte.
//!
//! openraft would count entries by itself, and all nodes would write their snapshots at the same entry. Writing one costs
//! processor and disk, so here each node has entries of its own for it, by its number: a quorum is never busy with it
//! because of the count alone.

use std::sync::Arc;
use std::time::Duration;

use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::NodeId;

use super::Raft;
use super::types::LogId;
use crate::limits::{LOG_MEMORY_BYTES, LOG_MEMORY_MAX_BYTES};
use crate::metrics::Metrics;
use crate::storage::LogStore;

/// How often the log is looked at.
const EVERY: Duration = Duration::from_millis(200);

/// Of the bytes that the log may have, one in so many stays behind a snapshot, for followers that are a little late.
const KEPT_PART: usize = 4;

/// 2^64 divided by the golden ratio: multiples of it modulo 2^64 are spread evenly, however many there are.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the task needs.
pub struct Compaction {
    /// When snapshots are due.
    pub schedule: Schedule,
    /// Takes snapshots and purges.
    pub raft: Raft,
    /// Knows its size.
    pub log: LogStore,
    /// Knows the size of the last snapshot: writing more than that again and again would gain nothing.
    pub metrics: Arc<Metrics>,
}

impl Compaction {
    /// Runs until `shutdown`, or until Raft has stopped.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = time::sleep_about(EVERY) => {}
            }
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
        if self.schedule.is_due(applied, snapshot) {
            // While one is being built, asking again does nothing.
            return self.raft.trigger().snapshot().await.map_err(stopped);
        }
        self.look_at_bytes(snapshot).await
    }

    /// Takes one step towards a log within its bound: a snapshot first, then the purge.
    async fn look_at_bytes(&self, snapshot: u64) -> Result<(), ()> {
        let snapshot_bytes = usize::try_from(self.metrics.snapshot_bytes.get()).unwrap_or(usize::MAX);
        let most = self.schedule.most_bytes(snapshot_bytes);
        if self.log.bytes() <= most {
            return Ok(());
        }
        let Some(upto) = self.log.purge_point(most / KEPT_PART) else { return Ok(()) };
        let trigger = self.raft.trigger();
        let step = if snapshot < upto { trigger.snapshot().await } else { trigger.purge_log(upto).await };
        step.map_err(stopped)
    }
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
    /// What had been applied when a snapshot was last asked for. One that failed is not asked for again at once.
    tried: u64,
}

impl Schedule {
    /// That of `node`: every so many entries, not the same ones as another node.
    pub fn new(node: NodeId, every: u64) -> Schedule {
        let part = GOLDEN.wrapping_mul(node.0);
        Schedule { part, every, ahead: share(every, part), tried: 0 }
    }

    /// Bytes of the log beyond which a snapshot is due, when the last one has `snapshot_bytes`. Writing a large state for
    /// a short log would gain nothing, and a log much longer than the state is only slower to start from.
    fn most_bytes(&self, snapshot_bytes: usize) -> usize {
        let most = LOG_MEMORY_MAX_BYTES.max(snapshot_bytes);
        let wanted = snapshot_bytes.saturating_mul(2).clamp(LOG_MEMORY_BYTES, most);
        // All nodes have the same log: up to an eighth less, so that they do not all write at the same time.
        wanted - usize::try_from(share(wanted as u64 / 8, self.part)).unwrap_or(0)
    }

    /// Whether a snapshot is to be asked for when `applied` is the last entry applied and `snapshot` the last one in the
    /// newest snapshot. Says so once.
    fn is_due(&mut self, applied: u64, snapshot: u64) -> bool {
        let is_due = self.turn(applied) > self.turn(snapshot.max(self.tried));
        if is_due {
            self.tried = applied;
        }
        is_due
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
        let mut schedule = Schedule::new(NodeId(node), every);
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
    fn a_snapshot_that_failed_is_asked_for_again_at_its_next_turn() {
        let mut schedule = Schedule::new(NodeId(1), 100);
        assert!(schedule.is_due(150, 0));
        assert!(!schedule.is_due(160, 0), "it failed, or is being written");
        assert!(schedule.is_due(250, 0));
    }

    #[test]
    fn the_largest_index_and_a_snapshot_after_each_entry_are_in_order() {
        assert!(Schedule::new(NodeId(254), u64::MAX).is_due(u64::MAX, 0));
        assert_eq!(due(3, 1), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
