//! The lock history of a node: who asked for, got, lost or gave up which lock, when, with which token, and
//! why. Each node keeps it for itself; people ask it by lock, session and time.
//!
//! # In the flow
//!
//! Apply tells a [`HistorySink`] what happens to locks. It collects in a buffer (`queue.rs`), which a thread
//! of its own (`worker.rs`) takes some ten times a second and keeps in files (`store.rs`): segments, each a
//! sled database (`segment.rs`, `table.rs`) of blocks of entries (`block.rs`). [`History`] is the handle for
//! readers. Why sled, and how the files are laid out: `docs/decisions/history-in-sled.md`.
//!
//! # What it promises
//!
//! - It is derived from the log. What a crash takes away comes back when the log is applied again, and what
//!   does not come back is declared a gap ([`Gap`], with its reason). No record is invented.
//! - A page shows everything that was applied before it was asked for ([`History::page`]).
//! - It never slows or stops apply, and never delays a start. Whatever fails here is a warning and a gap: a
//!   buffer that is full drops records and says so, a disk that fails ends the history and not the node.
//! - It takes at most `history.max_bytes` of the disk, and removes what is older than `history.max_age_ms`.
//! - It has its own files below the node's folder (`history/`), which can be removed while the node does not
//!   run.
//!
//! # What it does not know
//!
//! No client, no connection, no Raft, and no other node: what it is told, and what it is asked, comes from
//! above. It decides nothing, and nothing decides by it. Who may read what of it is not decided here either:
//! a record carries who could read its lock ([`Readers`]), and the reports look at that.

mod block;
mod error;
mod footer;
mod query;
mod queue;
mod readers;
mod record;
mod segment;
mod store;
mod table;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_env::worker::{self as threads, Worker};
use rowlock_types::limits::{
    HISTORY_CLOSE_MAX, HISTORY_DELAY_MAX, HISTORY_FREE_MIN_BYTES, HISTORY_QUEUE_MAX_JOBS,
};
use rowlock_types::metrics::Metrics;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub use query::{Filter, Page};
pub use queue::{HistorySink, Off, Recorder};
pub use readers::Readers;
pub use record::{Entry, Gap, GapReason, Key, Record};

use queue::Backlog;
use store::{Bounds, Found};
use worker::{Job, Keeper};

/// How often what is too old is removed.
const TRIM_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Whether nodes keep one.
    pub enabled: bool,
    /// What is older is removed.
    #[serde(rename = "max_age", with = "rowlock_types::duration")]
    pub max_age_ms: u64,
    /// What it may take of each node's disk. Beyond: the oldest is removed.
    pub max_bytes: u64,
}

impl Default for HistoryConfig {
    /// A week, in a quarter of a gigabyte.
    fn default() -> Self {
        HistoryConfig { enabled: true, max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 }
    }
}

/// Why the history cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("this node keeps no history: history.enabled = false in its cluster.toml")]
    Off,
    /// It took too long, or its files could not be read; the node's log says which.
    #[error("the history could not be read in time; try again, or ask another node")]
    NotNow,
}

/// The handle to the history of a node. Clone it freely.
#[derive(Clone, Default)]
pub struct History {
    worker: Option<Worker<Job>>,
}

impl History {
    pub fn off() -> (History, Arc<dyn HistorySink>) {
        (History::default(), Arc::new(Off))
    }

    /// Starts the thread for the history of the node with its files in `node`, which need not exist yet;
    /// nothing is written before the first event. Blocks shortly on the disk.
    pub fn start(
        node: &Path,
        config: HistoryConfig,
        metrics: Arc<Metrics>,
    ) -> (History, Arc<dyn HistorySink>) {
        if !config.enabled {
            return History::off();
        }
        let found = match Found::look(node) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the lock history cannot be read: none is kept until the next start");
                return History::off();
            }
        };
        let bounds = Bounds {
            max_age_ms: i64::try_from(config.max_age_ms).unwrap_or(i64::MAX),
            max_bytes: config.max_bytes,
            free_min_bytes: HISTORY_FREE_MIN_BYTES,
        };
        let backlog = Arc::new(Backlog::behind(found.covered));
        let mut keeper = Keeper::new(node.to_owned(), found, bounds, backlog.clone(), metrics.clone());
        let work = move |jobs: &mut Vec<Job>| keeper.handle(jobs);
        let worker = threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_DELAY_MAX, work);
        let sink = Recorder::new(worker.clone(), backlog, metrics);
        (History { worker: Some(worker) }, Arc::new(sink))
    }

    /// Reads a part of the history until `deadline`, behind everything that apply has handed over before.
    ///
    /// # Errors
    /// [`Unavailable`]; asking again is safe.
    ///
    /// # Cancel safety
    /// A question changes nothing; one whose caller has gone is broken off.
    ///
    /// # Ordering
    /// What was applied before the call is in the answer.
    pub async fn page(&self, filter: Filter, deadline: Instant) -> Result<Page, Unavailable> {
        let worker = self.worker.as_ref().ok_or(Unavailable::Off)?;
        let (reply, answer) = oneshot::channel();
        let asked = worker.submit(Job::Read { filter, deadline, reply });
        asked.map_err(|_| Unavailable::NotNow)?;
        match time::timeout_at(deadline, answer).await {
            Ok(Ok(page)) => Ok(page),
            _ => Err(Unavailable::NotNow),
        }
    }

    /// Removes what is too old, now and then, without end.
    pub async fn keep_trimmed(self) {
        let Some(worker) = self.worker else { return };
        loop {
            time::sleep(TRIM_EVERY).await;
            // Not taken: the thread has enough to do, and is asked again.
            drop(worker.submit(Job::Trim));
        }
    }

    /// Writes everything out, when apply has stopped. What is not written in time comes back from the log.
    pub async fn close(&self) {
        let Some(worker) = &self.worker else { return };
        let (done, closed) = oneshot::channel();
        if worker.submit(Job::Close(done)).is_err()
            || !matches!(time::timeout(HISTORY_CLOSE_MAX, closed).await, Ok(Ok(())))
        {
            tracing::info!(
                "the lock history was not closed in time; the next start applies its last part again"
            );
        }
    }
}

#[cfg(test)]
mod tests;
