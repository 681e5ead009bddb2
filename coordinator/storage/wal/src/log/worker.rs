//! Thread of the log: takes all queued writes, writes them as a single batch, flushes once, then notifies the
//! waiters.
//!
//! Invariant: the thread acknowledges only after the flush, and never again after a failure. A full disk is
//! no failure before the first flush of a batch: the batch waits for space.
//!
//! Log of a running node: in memory for readers, in the write-ahead log for durability.
//!
//! Reads never touch the disk. Only the worker reports durability, never this handle.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rowlock_env::decides;
use rowlock_env::disk::DirLock;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::worker::{self, Worker};
use rowlock_metrics::Metrics;
use rowlock_metrics::memory::Tally;
use tokio::sync::oneshot;

use super::record::{Checkpoint, Record};
use super::writer::Writer;
use crate::entry::{Entry, LogId, Vote};
use crate::error::{DiskFailure, Unwritten, is_for_lack_of_room};
use crate::limits::{FLUSH_MARK_DELAY, WAL_QUEUE_MAX};
use crate::memlog::{Gap, MemLog};
use crate::reserve::Reserve;

/// Pause between attempts to write a batch on a full disk.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);

/// Called once, from the log's thread, after a disk failure: the node must stop and log the message.
pub type OnFatal = Arc<dyn Fn(&DiskFailure) + Send + Sync>;

pub enum Job {
    Write {
        records: Vec<Record>,
        /// Commit position at submission. Written with the batch, never alone: a flush per commit would
        /// double the flushes, and a restarted node relearns a lost position.
        committed: Option<LogId>,
        done: Done,
    },
    /// Writes the pending records and releases the folder.
    Close {
        /// Commit position at submission.
        committed: Option<LogId>,
        /// Completed once everything is on disk and the folder is released.
        done: oneshot::Sender<()>,
    },
    /// Replaces the log's file by a failing file.
    #[cfg(test)]
    Replace(rowlock_env::disk::File),
}

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

enum State {
    Open {
        writer: Box<Writer>,
        /// Records without space on the disk, and all later records.
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

/// Starts the thread. The thread holds `lock` until the log is closed, fails or ends, and releases `reserve`
/// on a full disk.
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
    /// Runs the jobs, and returns the delay until the next call without jobs. After a failure, calls
    /// `on_fatal` before the waiters of the failed batch are notified.
    fn run(&mut self, jobs: &mut Vec<Job>) -> Option<Duration> {
        let mut next = match &mut self.state {
            State::Open { waiting, .. } => waiting.take(),
            State::Failed(_) | State::Closed => None,
        };
        if jobs.is_empty() && next.is_none() {
            self.rest();
            return None;
        }
        let mut rest = jobs.drain(..).peekable();
        while let Some(mut batch) = next.take().or_else(|| rest.peek().map(|_| RecordBatch::default())) {
            self.fill(&mut batch, &mut rest);
            let result = self.write(&mut batch);
            if let Err(Unwritten::NoRoom(failure)) = &result {
                self.report_waiting(failure);
                if let (None, State::Open { waiting, .. }) = (&batch.close, &mut self.state) {
                    assert!(rest.peek().is_none(), "a batch takes all queued jobs, or ends with a close");
                    assert!(waiting.is_none(), "a single batch waits, with all later jobs");
                    *waiting = Some(batch);
                    return Some(NO_ROOM_PAUSE);
                }
            } else if self.metrics.wal_waits_for_room.get() == 1 {
                self.metrics.wal_waits_for_room.set(0);
                tracing::info!("the log continues: the disk has space again");
            }
            if let (Err(Unwritten::Failed(failure)), State::Open { .. }) = (&result, &self.state) {
                self.fail(failure.clone());
            }
            batch.finish(&mut self.state, &result.map_err(Unwritten::failure));
        }
        Some(FLUSH_MARK_DELAY)
    }

    /// Moves jobs into the batch, up to a close.
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

    /// Writes the batch; on a full disk, releases the reserve once and retries.
    fn write(&mut self, batch: &mut RecordBatch) -> Result<(), Unwritten> {
        let mut result = batch.write(&mut self.state);
        if matches!(result, Err(Unwritten::NoRoom(_))) && self.reserve.release() {
            rare::taken(Rare::ReserveGivenUp);
            tracing::warn!(
                "the disk is full: the log continues in the space of the file `reserve`; free space on this file system"
            );
            result = batch.write(&mut self.state);
        }
        assert!(result.is_err() || !matches!(self.state, State::Failed(_)), "a failed log is not written");
        result
    }

    fn report_waiting(&self, failure: &DiskFailure) {
        assert!(is_for_lack_of_room(failure.kind), "a batch waits for space only");
        if self.metrics.wal_waits_for_room.get() == 1 {
            return;
        }
        self.metrics.wal_waits_for_room.set(1);
        rare::taken(Rare::LogWaitsForRoom);
        tracing::error!(
            path = %failure.path.display(),
            error = failure.text,
            "the disk is full: this node writes and acknowledges nothing; free space on this file system, and the node \
             continues"
        );
    }

    fn fail(&mut self, failure: DiskFailure) {
        rare::taken(Rare::DiskFailed);
        (self.on_fatal)(&failure);
        self.state = State::Failed(failure);
    }

    fn rest(&mut self) {
        let State::Open { writer, .. } = &mut self.state else { return };
        // On a full disk the mark is skipped: the next record carries the same offset.
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
    fn write(&mut self, state: &mut State) -> Result<(), Unwritten> {
        match state {
            State::Open { writer, .. } => {
                let known = writer.checkpoint().committed;
                let news =
                    self.committed.filter(|committed| Some(*committed) != known).map(Record::Committed);
                if let Err(unwritten) = writer.write(self.records.iter().chain(&news)) {
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
                Err(Unwritten::of_flush("writing", std::path::Path::new("the log"), &closed))
            }
        }
    }

    fn finish(self, state: &mut State, result: &Result<(), DiskFailure>) {
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

/// Pause between attempts to submit to a full queue.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// Log of this node. Clones share the log. A single task at a time may write; any task may read.
#[derive(Clone)]
pub struct Log {
    memory: Arc<Mutex<MemLog>>,
    /// Payload bytes of the entries in memory, changed with `memory` locked.
    bytes: Tally,
    /// Latest vote on disk.
    flushed_vote: Arc<Mutex<Option<Vote>>>,
    worker: Worker<Job>,
}

impl Log {
    pub(crate) fn new(memory: MemLog, worker: Worker<Job>) -> Self {
        // Recovery has flushed the recovered vote.
        let flushed_vote = Arc::new(Mutex::new(memory.checkpoint().vote));
        let bytes = Tally::default();
        bytes.set(memory.bytes());
        Log { memory: Arc::new(Mutex::new(memory)), bytes, flushed_vote, worker }
    }

    /// Locks the log in memory. Callers must not hold the guard across an await, nor for long.
    pub fn read(&self) -> MutexGuard<'_, MemLog> {
        self.memory.lock()
    }

    pub fn checkpoint(&self) -> Checkpoint {
        *self.memory.lock().checkpoint()
    }

    /// Returns the counter of the payload bytes of the entries in memory.
    pub fn tally(&self) -> &Tally {
        &self.bytes
    }

    /// Changes the log in memory.
    fn change<T>(&self, change: impl FnOnce(&mut MemLog) -> T) -> T {
        let mut memory = self.memory.lock();
        let changed = change(&mut memory);
        self.bytes.set(memory.bytes());
        changed
    }

    /// Returns the submission time of the oldest write in progress on the disk. Excludes a write that waits
    /// for disk space.
    pub fn unflushed_since(&self) -> Option<Instant> {
        self.worker.busy_since()
    }

    /// Returns the index up to which a purge leaves at most `keep_bytes` of payloads. Walks the kept entries:
    /// call only above the bound.
    pub fn purge_point(&self, keep_bytes: usize) -> Option<u64> {
        self.memory.lock().purge_point(keep_bytes)
    }

    /// Replaces the vote, durably on return; readers may see the vote earlier. The mere confirmation of a
    /// stored vote (its candidate was elected) waits for the next write: forgetting the confirmation breaks
    /// no promise, and an election on slow disks does not wait for the flush.
    ///
    /// # Errors
    /// The disk has failed or the log is closed: the caller must not send the vote.
    ///
    /// # Cancel safety
    /// After cancellation the vote may still reach the disk.
    pub async fn save_vote(&self, vote: Vote) -> io::Result<()> {
        self.memory.lock().set_vote(vote);
        let only_confirms = vote.only_confirms(*self.flushed_vote.lock());
        if decides!("vote-only-confirms", only_confirms) {
            self.write(vec![Record::Vote(vote)], Done::Unawaited).await?;
        } else if !mutant::is(Mutant::VoteInMemory) {
            self.write_durably(vec![Record::Vote(vote)]).await?;
            *self.flushed_vote.lock() = Some(vote);
        }
        Ok(())
    }

    /// Sets the commit position. The worker writes the position with the next batch, never alone.
    pub fn set_committed(&self, committed: Option<LogId>) {
        self.memory.lock().set_committed(committed);
    }

    /// Appends entries, visible to readers at once. The worker completes `done` after the flush or on
    /// failure.
    ///
    /// # Errors
    /// An entry does not continue the log (a bug of the caller), or the worker's queue is stuck.
    pub async fn append(&self, entries: Vec<Entry>, done: Done) -> io::Result<()> {
        let mut records = Vec::with_capacity(entries.len());
        self.change(|memory| {
            for entry in entries {
                records.push(Record::Entry(entry.clone()));
                memory.append(entry)?;
            }
            let last = memory.entries().next_back().map(|entry| entry.log_id);
            assert!(
                records.is_empty() || memory.checkpoint().last == last,
                "the last entry is the newest one"
            );
            Ok(())
        })
        .map_err(|gap: Gap| io::Error::new(io::ErrorKind::InvalidInput, gap))?;
        self.write(records, done).await
    }

    /// Appends entries and returns after the flush.
    pub async fn append_durably(&self, entries: Vec<Entry>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.append(entries, Done::Waiter(done)).await?;
        written.await.map_err(|_| ended())?
    }

    /// Removes the entries behind `after`, or all entries for `None`. Returns without a flush: the next
    /// awaited append covers the truncation.
    pub async fn truncate_after(&self, after: Option<LogId>) -> io::Result<()> {
        rare::taken(Rare::LogTruncated);
        self.change(|memory| memory.truncate_after(after));
        if mutant::is(Mutant::TruncateInMemory) {
            return Ok(());
        }
        self.write(vec![Record::Truncate(after)], Done::Unawaited).await
    }

    /// Removes the entries up to `upto`, inclusive; a snapshot covers them. Returns without a flush.
    pub async fn purge(&self, upto: LogId) -> io::Result<()> {
        self.change(|memory| memory.purge(upto));
        self.write(vec![Record::Purge(upto)], Done::Unawaited).await
    }

    /// Writes the pending records and releases the data folder; later writes fail. Called at the node's end,
    /// after Raft has stopped.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        let committed = self.checkpoint().committed;
        if self.submit(Job::Close { committed, done }).await.is_ok() {
            let _ = closed.await; // the thread may have died of a bug: nothing is left to wait for
        }
    }

    /// Queues a job; waits while the queue is full.
    async fn submit(&self, mut job: Job) -> io::Result<()> {
        // Bounded: an ended worker returns the job each time, and a full queue drains within a flush.
        for _ in 0..10_000 {
            match self.worker.submit(job) {
                Ok(()) => return Ok(()),
                Err(again) => job = again,
            }
            time::sleep(QUEUE_FULL_PAUSE).await;
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the log's thread has ended or does not move for ten seconds",
        ))
    }

    async fn write(&self, records: Vec<Record>, done: Done) -> io::Result<()> {
        let committed = self.checkpoint().committed;
        self.submit(Job::Write { records, committed, done }).await
    }

    /// Writes records and returns after the flush.
    async fn write_durably(&self, records: Vec<Record>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.write(records, Done::Waiter(done)).await?;
        written.await.map_err(|_| ended())?
    }

    #[cfg(test)]
    pub(crate) async fn replace_file(&self, file: rowlock_env::disk::File) {
        self.submit(Job::Replace(file)).await.expect("the worker runs");
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the log's thread has ended")
}
