//! Lock history of a node: requests, grants, losses and releases of locks, with time, token and reason. Each
//! node keeps its own history; operators query the history by lock, session and time.
//!
//! # In the flow
//!
//! Apply passes the events of locks to a [`HistorySink`]. A buffer collects the events (`queue.rs`); a
//! separate thread (`worker.rs`) takes the buffer about ten times a second and writes its entries to files
//! (`store.rs`): segments, each a sled database (`segment.rs`) of blocks of entries (`block.rs`).
//! [`History`] is the handle for readers. `docs/decisions/history-in-sled.md` has the reasons for sled and
//! the layout of the files.
//!
//! # Guarantees
//!
//! - The history is derived from the log. Entries lost in a crash return with the next replay of the log, and
//!   a permanent loss is declared as a gap with a reason ([`Gap`](rowlock_proto::lock_event::Gap)). No record
//!   is invented.
//! - A page includes all events applied before the query ([`History::page`]).
//! - The history never slows or stops apply, and never delays a start. A failure results in a warning and a
//!   gap: a full buffer drops records and declares a gap, a failing disk ends the history and not the node.
//! - The history uses at most `history.max_bytes` of the disk, and removes entries older than
//!   `history.max_age_ms`.
//! - The history has its own files below the node's folder (`history/`). An operator may remove these files
//!   while the node is stopped.
//!
//! # Outside this crate
//!
//! The crate has no access to clients, connections, Raft or other nodes: the caller passes all events and
//! queries. The history makes no decisions, and no decision depends on the history. Authorization happens
//! elsewhere: a record carries its lock's readers ([`Readers`]), and the reports check them.

mod block;
mod footer;
pub mod limits;
pub mod offline;
mod query;
mod queue;
mod record;
mod segment;
mod store;
mod worker;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::duty::Duty;
use rowlock_env::time::{self, Instant};
use rowlock_env::worker::{self as threads, Worker};
use rowlock_metrics::Metrics;
use tokio::sync::oneshot;

use crate::limits::{HISTORY_CLOSE_MAX, HISTORY_DELAY_MAX, HISTORY_FREE_MIN_BYTES, HISTORY_QUEUE_MAX_JOBS};

pub use query::{Filter, Page};
pub use queue::{HistorySink, Off, Recorder};
pub use record::{Entry, Key, Readers};

use queue::Backlog;
use store::{Bounds, Found};
use worker::{Job, Keeper};

const TRIM_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("this node keeps no history: history.enabled = false in its cluster.toml")]
    Off,
    /// Reading timed out or failed; the node's log has the cause.
    #[error("the history could not be read in time; try again, or ask another node")]
    NotNow,
}

/// Age and disk space of the history of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub max_age_ms: u64,
    /// Disk space in bytes, at least 64 MiB.
    pub max_bytes: u64,
}

/// Handle of a node's history. Clones share the history.
#[derive(Clone, Default)]
pub struct History {
    worker: Option<Worker<Job>>,
}

impl History {
    pub fn off() -> (History, Arc<dyn HistorySink>) {
        (History::default(), Arc::new(Off))
    }

    /// Starts the thread for the history below folder `node`. The folder may be missing: nothing is written
    /// before the first event. Blocks briefly on the disk.
    pub fn start(
        node: &Path,
        retention: Retention,
        metrics: Arc<Metrics>,
    ) -> (History, Arc<dyn HistorySink>) {
        let found = match Found::scan(node) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "cannot read the lock history: recording is off until the next start");
                return History::off();
            }
        };
        let bounds = Bounds {
            max_age_ms: i64::try_from(retention.max_age_ms).unwrap_or(i64::MAX),
            max_bytes: retention.max_bytes,
            free_min_bytes: HISTORY_FREE_MIN_BYTES,
        };
        let backlog = Arc::new(Backlog::behind(found.covered));
        let mut keeper = Keeper::new(node.to_owned(), found, bounds, backlog.clone(), metrics.clone());
        let work = move |jobs: &mut Vec<Job>| keeper.handle(jobs);
        let worker = threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_DELAY_MAX, work);
        let sink = Recorder::new(worker.clone(), backlog, metrics);
        (History { worker: Some(worker) }, Arc::new(sink))
    }

    /// Reads a part of the history until `deadline`.
    ///
    /// # Errors
    /// [`Unavailable`]; a retry is safe.
    ///
    /// # Cancel safety
    /// Cancel safe: a query changes nothing, and the thread stops a query without a caller.
    ///
    /// # Ordering
    /// The result includes all events applied before the call.
    pub async fn page(&self, filter: Filter, deadline: Instant) -> Result<Page, Unavailable> {
        let worker = self.worker.as_ref().ok_or(Unavailable::Off)?;
        let (reply, answer) = oneshot::channel();
        let submitted = worker.submit(Job::Read { filter, deadline, reply });
        submitted.map_err(|_| Unavailable::NotNow)?;
        match time::timeout_at(deadline, answer).await {
            Ok(Ok(page)) => Ok(page),
            _ => Err(Unavailable::NotNow),
        }
    }

    /// Returns the duty that removes old entries, unless the history is off.
    pub fn trimming(&self) -> Option<Trimming> {
        self.worker.clone().map(|worker| Trimming { worker, is_due: false })
    }

    /// Writes the pending entries. Called after apply has stopped; the next start replays late entries from
    /// the log.
    pub async fn close(&self) {
        let Some(worker) = &self.worker else { return };
        let (done, closed) = oneshot::channel();
        if worker.submit(Job::Close(done)).is_err()
            || !matches!(time::timeout(HISTORY_CLOSE_MAX, closed).await, Ok(Ok(())))
        {
            tracing::info!("the lock history was not closed in time; the next start replays its last part");
        }
    }
}

/// Duty that removes old entries.
pub struct Trimming {
    worker: Worker<Job>,
    /// Unset before the first turn: a node that starts has other work for its disk.
    is_due: bool,
}

impl Duty for Trimming {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        if std::mem::replace(&mut self.is_due, true) {
            // A full queue means a busy thread; the next turn tries again.
            drop(self.worker.submit(Job::Trim));
        }
        Ok(Some(time::now() + TRIM_EVERY))
    }
}

#[cfg(test)]
mod tests;
