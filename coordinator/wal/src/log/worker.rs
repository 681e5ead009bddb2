//! The log's thread: takes all writes that wait, writes them as one batch, flushes once, then tells
//! everybody.
//!
//! Invariant: nobody is told "done" before the flush, and after a failure nobody is told "done" ever again.

use std::io;
use std::sync::Arc;

use rowlock_env::disk::DirLock;
use rowlock_env::rare::{self, Rare};
use rowlock_env::worker::{self, Worker};
use rowlock_types::limits::WAL_QUEUE_MAX;
use rowlock_types::pacing::{FLUSH_MARK_DELAY, LAZY_FLUSH_DELAY_MAX};
use tokio::sync::oneshot;

use super::record::Record;
use super::writer::Writer;
use crate::entry::LogId;
use crate::error::DiskFailure;

/// Called once, from the log's thread, when the disk has failed: the node must stop and show the message.
pub type OnFatal = Arc<dyn Fn(&DiskFailure) + Send + Sync>;

/// What the thread is asked.
pub enum Job {
    /// Write records.
    Write {
        /// In order.
        records: Vec<Record>,
        /// How far the log was known to be committed when this was asked. Written with the batch, never for
        /// itself: a flush per commit would double the flushes, and forgetting the last one costs nothing but
        /// its re-learning.
        committed: Option<LogId>,
        /// Whom to tell.
        done: Done,
    },
    /// Write what is pending, and let go of the folder.
    Close {
        /// As far as the log is known to be committed.
        committed: Option<LogId>,
        /// Told when everything is on disk and closed.
        done: oneshot::Sender<()>,
    },
    /// Puts a file that fails under the log.
    #[cfg(test)]
    Replace(rowlock_env::disk::File),
}

/// What is called with what became of a write.
pub type Callback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Who waits for a write.
pub enum Done {
    /// Nobody: a later write that somebody waits for covers it.
    Nobody,
    /// Whoever gave this, which is called on the log's thread: it must not block.
    Callback(Callback),
    /// A task.
    Waiter(oneshot::Sender<io::Result<()>>),
}

impl Done {
    fn tell(self, result: &Result<(), DiskFailure>) {
        let result = result.as_ref().map_err(DiskFailure::to_io).copied();
        match self {
            Done::Nobody => {}
            Done::Callback(callback) => callback(result),
            Done::Waiter(waiter) => {
                let _ = waiter.send(result); // the task may have been dropped
            }
        }
    }
}

enum State {
    Open { writer: Box<Writer>, _lock: DirLock },
    Failed(DiskFailure),
    Closed,
}

/// Starts the thread. It holds `lock` until it is closed, fails or ends.
pub fn start(writer: Writer, lock: DirLock, on_fatal: OnFatal) -> Worker<Job> {
    let mut state = State::Open { writer: Box::new(writer), _lock: lock };
    worker::spawn_patient("rowlock-wal", WAL_QUEUE_MAX, LAZY_FLUSH_DELAY_MAX, FLUSH_MARK_DELAY, move |jobs| {
        run(&mut state, jobs, &on_fatal)
    })
}

/// Does the jobs. The node hears of a failure before those who wait for the batch that failed.
fn run(state: &mut State, jobs: &mut Vec<Job>, on_fatal: &OnFatal) {
    if jobs.is_empty() {
        return rest(state, on_fatal);
    }
    let mut rest = std::mem::take(jobs).into_iter().peekable();
    while rest.peek().is_some() {
        let mut batch = Batch::default();
        for job in rest.by_ref() {
            match job {
                Job::Write { records, committed, done } => batch.add(records, committed, Some(done)),
                Job::Close { committed, done } => {
                    batch.add(Vec::new(), committed, None);
                    batch.close = Some(done);
                    break;
                }
                #[cfg(test)]
                Job::Replace(file) => {
                    if let State::Open { writer, .. } = state {
                        writer.replace_file(file);
                    }
                }
            }
        }
        let result = batch.write(state);
        assert!(result.is_err() || !matches!(state, State::Failed(_)), "a failed log is not written");
        if let (Err(failure), State::Open { .. }) = (&result, &*state) {
            *state = State::Failed(failure.clone());
            rare::taken(Rare::DiskFailed);
            on_fatal(failure);
        }
        batch.finish(state, &result);
    }
}

/// Nothing has come for a while.
fn rest(state: &mut State, on_fatal: &OnFatal) {
    if let State::Open { writer, .. } = state
        && let Err(failure) = writer.mark_flushed()
    {
        *state = State::Failed(failure.clone());
        on_fatal(&failure);
    }
}

#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    committed: Option<LogId>,
    waiting: Vec<Done>,
    close: Option<oneshot::Sender<()>>,
}

impl Batch {
    fn add(&mut self, records: Vec<Record>, committed: Option<LogId>, done: Option<Done>) {
        assert!(self.close.is_none(), "what comes after a close belongs to the next batch");
        if self.records.is_empty() {
            self.records = records;
        } else {
            self.records.extend(records);
        }
        self.committed = committed.or(self.committed);
        self.waiting.extend(done);
    }

    fn write(&mut self, state: &mut State) -> Result<(), DiskFailure> {
        match state {
            State::Open { writer, .. } => {
                let known = writer.checkpoint().committed;
                let news = self.committed.filter(|committed| Some(*committed) != known);
                self.records.extend(news.map(Record::Committed));
                if !self.records.is_empty() {
                    writer.write(&self.records)?;
                }
                assert_eq!(writer.checkpoint().committed, self.committed.or(known), "the mark was written");
                if self.close.is_some() { writer.mark_flushed() } else { Ok(()) }
            }
            State::Failed(failure) => Err(failure.clone()),
            State::Closed if self.waiting.is_empty() => Ok(()),
            State::Closed => {
                let closed = io::Error::new(io::ErrorKind::BrokenPipe, "the log was closed");
                Err(DiskFailure::new("writing", std::path::Path::new("the log"), &closed))
            }
        }
    }

    fn finish(self, state: &mut State, result: &Result<(), DiskFailure>) {
        assert!(result.is_err() || !matches!(state, State::Failed(_)), "after a failure nothing is done");
        for done in self.waiting {
            done.tell(result);
        }
        if let Some(close) = self.close {
            if matches!(state, State::Open { .. }) {
                *state = State::Closed; // drops the lock
            }
            assert!(!matches!(state, State::Open { .. }), "a closed log is written no more");
            let _ = close.send(());
        }
    }
}
