//! Batch of the log's thread: all queued records, written together, with the waiters of the write.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::disk::DirLock;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_state::FORGOTTEN_MAX;
use tokio::sync::oneshot;

use super::record::Record;
use super::writer::Writer;
use crate::entry::LogId;
use crate::error::{DiskFailure, Unwritten};
use crate::run_mark::RunMark;

pub type Callback = Box<dyn FnOnce(io::Result<()>) + Send>;

pub enum Done {
    /// No receiver: a later awaited write covers this write.
    Unawaited,
    /// Called on the log's thread, and must not block.
    Callback(Callback),
    Waiter(oneshot::Sender<io::Result<()>>),
}

impl Done {
    fn complete(self, result: &Result<(), DiskFailure>) {
        let result = result.as_ref().map_err(DiskFailure::to_io).copied();
        match self {
            Done::Unawaited => {}
            Done::Callback(callback) => callback(result),
            Done::Waiter(waiter) => {
                let _ = waiter.send(result); // the waiting task may have been dropped
            }
        }
    }
}

pub(super) enum State {
    Open {
        writer: Box<Writer>,
        /// Records without space on the disk, and all later records.
        waiting: Option<RecordBatch>,
        _lock: DirLock,
    },
    Failed(DiskFailure),
    Closed,
}

pub(super) struct RecordBatch {
    pub(super) records: Vec<Record>,
    pub(super) committed: Option<LogId>,
    pub(super) waiting: Vec<Done>,
    pub(super) close: Option<oneshot::Sender<()>>,
    /// Number of commands, if all jobs may be completed before the flush.
    pub(super) early: Option<u32>,
}

impl Default for RecordBatch {
    fn default() -> Self {
        let (records, waiting) = (Vec::new(), Vec::new());
        RecordBatch { records, committed: None, waiting, close: None, early: Some(0) }
    }
}

impl RecordBatch {
    pub(super) fn add(&mut self, records: Vec<Record>, committed: Option<LogId>, done: Option<Done>) {
        assert!(self.close.is_none(), "jobs after a close belong to the next batch");
        if self.records.is_empty() {
            self.records = records;
        } else {
            self.records.extend(records);
        }
        self.committed = committed.or(self.committed);
        self.waiting.extend(done);
    }

    /// Writes the batch. After [`Unwritten::NoRoom`] the caller may retry: the staged records have left the
    /// batch.
    pub(super) fn write(&mut self, state: &mut State) -> Result<(), Unwritten> {
        match state {
            State::Open { writer, .. } => {
                assert!(self.early.is_none() || self.close.is_none(), "a clean stop flushes");
                let known = writer.checkpoint().committed;
                let news =
                    self.committed.filter(|committed| Some(*committed) != known).map(Record::Committed);
                let records = self.records.iter().chain(&news);
                let written = match self.early {
                    Some(_) => writer.write_unflushed(records),
                    None => writer.write(records),
                };
                if let Err(unwritten) = written {
                    let given = self.records.len() + usize::from(news.is_some());
                    assert!(writer.staged() <= given, "no record is staged that was not given");
                    let staged = writer.staged().min(self.records.len());
                    self.records.drain(..staged);
                    return Err(unwritten);
                }
                assert_eq!(writer.checkpoint().committed, self.committed.or(known), "the mark was written");
                self.records.clear();
                if self.close.is_some() { writer.mark_flushed() } else { Ok(()) }
            }
            State::Failed(failure) => Err(Unwritten::Failed(failure.clone())),
            State::Closed if self.waiting.is_empty() => Ok(()),
            State::Closed => {
                let closed = io::Error::new(io::ErrorKind::BrokenPipe, "the log was closed");
                Err(Unwritten::of_flush("writing", Path::new("the log"), &closed))
            }
        }
    }

    pub(super) fn finish(self, state: &mut State, result: &Result<(), DiskFailure>) {
        assert!(result.is_err() || !matches!(state, State::Failed(_)), "after a failure nothing is done");
        for done in self.waiting {
            done.complete(result);
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

/// Number of commands acknowledged before their flush, and the time of the first one.
pub type Unflushed = Arc<Mutex<Option<(u32, Instant)>>>;

/// Acknowledgements before the flush.
pub struct Early {
    pub flush_within: Duration,
    pub mark: Arc<RunMark>,
    pub unflushed: Unflushed,
    /// Failure that is not in the mark yet.
    pub unmarked: Option<DiskFailure>,
}

impl Early {
    pub fn new(flush_within: Duration, mark: Arc<RunMark>) -> Early {
        Early { flush_within, mark, unflushed: Unflushed::default(), unmarked: None }
    }

    /// Returns whether this number of commands more may be acknowledged before their flush.
    pub(super) fn allows(&self, commands: u32) -> bool {
        let before = self.unflushed.lock().map_or(0, |(before, _)| before);
        assert!(before <= FORGOTTEN_MAX, "a restart raises tokens by no more");
        before + commands <= FORGOTTEN_MAX
    }

    /// Records a written batch: its number of commands without a flush, or `None` for a flush.
    pub(super) fn record(&self, commands: Option<u32>) {
        let mut unflushed = self.unflushed.lock();
        *unflushed = commands.map(|commands| {
            rare::taken(Rare::AcknowledgedUnflushed);
            let (before, since) = unflushed.unwrap_or_else(|| (0, time::now()));
            (before + commands, since)
        });
        assert!(unflushed.is_none_or(|(count, _)| count <= FORGOTTEN_MAX), "a restart covers them");
    }

    /// Returns the time since the first acknowledgement without a flush.
    pub(super) fn age(&self) -> Option<Duration> {
        self.unflushed.lock().map(|(_, since)| since.elapsed())
    }
}
