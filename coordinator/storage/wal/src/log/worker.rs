//! The log's thread: takes all writes that wait, writes them as one batch, flushes once, then tells
//! everybody.
//!
//! Invariant: nothing is reported as done before the flush, and nothing ever again after a failure. A
//! disk without room is no failure as long as nothing has been flushed: the batch waits until there is some.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::disk::DirLock;
use rowlock_env::rare::{self, Rare};
use rowlock_env::worker::{self, Worker};
use rowlock_types::limits::WAL_QUEUE_MAX;
use rowlock_types::metrics::Metrics;
use rowlock_types::pacing::FLUSH_MARK_DELAY;
use tokio::sync::oneshot;

use super::record::Record;
use super::writer::Writer;
use crate::entry::LogId;
use crate::error::{DiskFailure, Unwritten, is_for_lack_of_room};
use crate::reserve::Reserve;

/// How often a batch that found no room is tried again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);

/// Called once, from the log's thread, when the disk has failed: the node must stop and show the message.
pub type OnFatal = Arc<dyn Fn(&DiskFailure) + Send + Sync>;

/// A request to the log's thread.
pub enum Job {
    Write {
        records: Vec<Record>,
        /// How far the log was known to be committed when this was asked. Written with the batch, never for
        /// itself: a flush per commit would double the flushes, and forgetting the last one costs nothing but
        /// its re-learning.
        committed: Option<LogId>,
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

/// Callback that receives the result of a write.
pub type Callback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The receiver of a write's result.
pub enum Done {
    /// No one: a later awaited write covers it.
    Nobody,
    /// This callback, which runs on the log's thread: it must not block.
    Callback(Callback),
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
    Open {
        writer: Box<Writer>,
        /// Records that did not fit on the disk, and all later ones.
        waiting: Option<RecordBatch>,
        _lock: DirLock,
    },
    Failed(DiskFailure),
    Closed,
}

struct Thread {
    state: State,
    reserve: Reserve,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
}

/// Starts the thread. It holds `lock` until it is closed, fails or ends. `reserve` is given up when there is
/// no room.
pub fn start(
    writer: Writer,
    lock: DirLock,
    reserve: Reserve,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
) -> Worker<Job> {
    let state = State::Open { writer: Box::new(writer), waiting: None, _lock: lock };
    let mut thread = Thread { state, reserve, metrics, on_fatal };
    worker::spawn_resting("rowlock-wal", WAL_QUEUE_MAX, move |jobs| thread.run(jobs))
}

impl Thread {
    /// Does the jobs, and says when to come again without any. The node hears of a failure before those who
    /// wait for the batch that failed.
    fn run(&mut self, jobs: &mut Vec<Job>) -> Option<Duration> {
        let mut next = match &mut self.state {
            State::Open { waiting, .. } => waiting.take(),
            State::Failed(_) | State::Closed => None,
        };
        if jobs.is_empty() && next.is_none() {
            self.rest();
            return None;
        }
        let mut rest = std::mem::take(jobs).into_iter().peekable();
        while let Some(mut batch) = next.take().or_else(|| rest.peek().map(|_| RecordBatch::default())) {
            self.fill(&mut batch, &mut rest);
            let result = self.write(&mut batch);
            if let Err(Unwritten::NoRoom(failure)) = &result {
                self.say_that_it_waits(failure);
                if let (None, State::Open { waiting, .. }) = (&batch.close, &mut self.state) {
                    assert!(rest.peek().is_none(), "a batch takes all that has come, or ends with a close");
                    assert!(waiting.is_none(), "one batch waits, with all that comes behind it");
                    *waiting = Some(batch);
                    return Some(NO_ROOM_PAUSE);
                }
            } else if self.metrics.wal_waits_for_room.get() == 1 {
                self.metrics.wal_waits_for_room.set(0);
                tracing::info!("the log has room again");
            }
            if let (Err(Unwritten::Failed(failure)), State::Open { .. }) = (&result, &self.state) {
                self.fail(failure.clone());
            }
            batch.finish(&mut self.state, &result.map_err(Unwritten::failure));
        }
        Some(FLUSH_MARK_DELAY)
    }

    /// Takes what has come into the batch, up to a close.
    fn fill(&mut self, batch: &mut RecordBatch, jobs: &mut impl Iterator<Item = Job>) {
        for job in jobs {
            match job {
                Job::Write { records, committed, done } => batch.add(records, committed, Some(done)),
                Job::Close { committed, done } => {
                    batch.add(Vec::new(), committed, None);
                    batch.close = Some(done);
                    return;
                }
                #[cfg(test)]
                Job::Replace(file) => {
                    if let State::Open { writer, .. } = &mut self.state {
                        writer.replace_file(file);
                    }
                }
            }
        }
    }

    /// Without room the reserve is given up, once.
    fn write(&mut self, batch: &mut RecordBatch) -> Result<(), Unwritten> {
        let mut result = batch.write(&mut self.state);
        if matches!(result, Err(Unwritten::NoRoom(_))) && self.reserve.give_up() {
            rare::taken(Rare::ReserveGivenUp);
            tracing::warn!("the disk is full: the log goes on in the room of the file `reserve`. Free space");
            result = batch.write(&mut self.state);
        }
        assert!(result.is_err() || !matches!(self.state, State::Failed(_)), "a failed log is not written");
        result
    }

    fn say_that_it_waits(&self, failure: &DiskFailure) {
        assert!(is_for_lack_of_room(failure.kind), "only for room is waited");
        if self.metrics.wal_waits_for_room.get() == 1 {
            return;
        }
        self.metrics.wal_waits_for_room.set(1);
        rare::taken(Rare::LogWaitsForRoom);
        tracing::error!(
            path = %failure.path.display(),
            error = failure.text,
            "the disk is full: this node writes nothing to its log and acknowledges nothing until there is room. Free \
             space on this file system: the node goes on by itself"
        );
    }

    fn fail(&mut self, failure: DiskFailure) {
        rare::taken(Rare::DiskFailed);
        (self.on_fatal)(&failure);
        self.state = State::Failed(failure);
    }

    /// Runs when no request has arrived for a while.
    fn rest(&mut self) {
        let State::Open { writer, .. } = &mut self.state else { return };
        // Without room there is no mark: what it says, the next record says as well.
        if let Err(Unwritten::Failed(failure)) = writer.mark_flushed() {
            self.fail(failure);
        }
    }
}

#[derive(Default)]
struct RecordBatch {
    records: Vec<Record>,
    committed: Option<LogId>,
    waiting: Vec<Done>,
    close: Option<oneshot::Sender<()>>,
}

impl RecordBatch {
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

    /// After [`Unwritten::NoRoom`] it may be called again: what has been staged is left out then.
    fn write(&mut self, state: &mut State) -> Result<(), Unwritten> {
        match state {
            State::Open { writer, .. } => {
                let known = writer.checkpoint().committed;
                let news =
                    self.committed.filter(|committed| Some(*committed) != known).map(Record::Committed);
                if let Err(unwritten) = writer.write(self.records.iter().chain(&news)) {
                    let asked = self.records.len() + usize::from(news.is_some());
                    assert!(writer.staged() <= asked, "no record is staged that was not given");
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
                Err(Unwritten::of_flush("writing", std::path::Path::new("the log"), &closed))
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
