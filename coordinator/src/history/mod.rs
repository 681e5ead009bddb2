//! The lock history: who asked for, got, lost or gave up which lock, when, with which token, and why. Kept by
//! every node for itself, queried by lock, session and time.
//!
//! In the flow: apply tells a [`HistorySink`] what happens to locks; it collects as a sheet (`draft.rs`,
//! `sheet.rs`) in a buffer (`queue.rs`) that a thread of its own (`worker.rs`) takes some ten times a second
//! and keeps in files (`store.rs`), slices of which each is a sled database (`slice.rs`, `table.rs`) of
//! blocks of sheets (`block.rs`). [`History`] is the door for those who read.
//!
//! Derived from the log: what a crash takes away comes back when the log is applied again, and what does not
//! is declared a gap. docs/decisions/history-in-sled.md.
//!
//! Must never do: slow or stop apply, delay a start, or decide anything. Whatever fails here is a warning and
//! a gap.

mod block;
mod draft;
mod error;
mod name;
mod page;
mod queue;
mod readers;
mod record;
mod seal;
mod sheet;
mod sieve;
mod slice;
mod store;
mod table;
mod varint;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_env::worker::{self as threads, Worker};
use tokio::sync::oneshot;

pub use page::{Filter, Page};
pub use queue::{HistorySink, Off, Recorder};
pub use readers::Readers;
pub use record::{Entry, Gap, GapReason, Key, Record, What};

use rowlock_types::limits::{
    HISTORY_CLOSE_MAX, HISTORY_FREE_MIN_BYTES, HISTORY_PATIENCE, HISTORY_QUEUE_MAX_JOBS,
};
use rowlock_types::metrics::Metrics;

use crate::config::HistoryConfig;
use queue::Backlog;
use store::{Bounds, Found};
use worker::{Job, Keeper};

/// How often what is too old is removed.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// Why the history cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// `history.enabled = false`.
    #[error("this node keeps no history: history.enabled = false in its cluster.toml")]
    Off,
    /// It took too long, or its files could not be read; the node's log says which.
    #[error("the history could not be read in time; try again, or ask another node")]
    NotNow,
}

/// The door to the history of a node. Clone it freely.
#[derive(Clone, Default)]
pub struct History {
    worker: Option<Worker<Job>>,
}

impl History {
    /// None is kept.
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
        let (backlog, recorded) = (Arc::new(Backlog::default()), found.covered);
        let mut keeper = Keeper::new(node.to_owned(), found, bounds, backlog.clone(), metrics.clone());
        let work = move |jobs: &mut Vec<Job>| keeper.handle(jobs);
        let worker = threads::spawn_in_background("history", HISTORY_QUEUE_MAX_JOBS, HISTORY_PATIENCE, work);
        let sink = Recorder::new(worker.clone(), backlog, metrics, recorded);
        (History { worker: Some(worker) }, Arc::new(sink))
    }

    /// Reads a part of the history until `deadline`, behind everything that apply has handed over before.
    ///
    /// # Errors
    /// [`Unavailable`]; asking again is safe.
    ///
    /// # Cancel safety
    /// Nothing is changed by a question; one that nobody waits for any more is broken off.
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

    /// Removes what is too old, now and then, until `shutdown`.
    pub async fn keep_trimmed(self, shutdown: Shutdown) {
        let Some(worker) = self.worker else { return };
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = time::sleep(TRIM_EVERY) => {}
            }
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
