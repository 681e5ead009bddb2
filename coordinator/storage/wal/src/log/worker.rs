//! Thread of the log: takes all queued writes, writes them as a single batch, flushes once, then notifies the
//! waiters.
//!
//! Invariant: the thread acknowledges only after the flush, and never again after a failure. A full disk is
//! no failure before the first flush of a batch: the batch waits for space. With
//! [`Acknowledge::Written`](crate::Acknowledge) the thread acknowledges entries about locks after the write,
//! and flushes them later.
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

use super::batch::{Done, Early, RecordBatch, State, Unflushed};
use super::record::{Checkpoint, Record};
use super::writer::Writer;
use crate::entry::{Entry, LogId, Vote};
use crate::error::{DiskFailure, Unwritten, is_for_lack_of_room};
use crate::limits::{FLUSH_MARK_DELAY, WAL_QUEUE_MAX};
use crate::memlog::{Gap, MemLog};
use crate::reserve::Reserve;

/// Pause between attempts to write a batch on a full disk.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Pause between attempts to mark a loss on a failed disk.
const MARK_PAUSE: Duration = Duration::from_secs(1);

/// Called once, from the log's thread, after a disk failure: the node must stop and log the message.
pub type OnFatal = Arc<dyn Fn(&DiskFailure) + Send + Sync>;

pub enum Job {
    Write {
        records: Vec<Record>,
        /// Commit position at submission. Written with the batch, never alone: a flush per commit would
        /// double the flushes, and a restarted node relearns a lost position.
        committed: Option<LogId>,
        /// Number of commands, if `done` may be completed before the flush.
        early: Option<u32>,
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

struct Thread {
    state: State,
    reserve: Reserve,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
    early: Option<Early>,
}

/// Starts the thread. The thread holds `lock` until the log is closed, fails or ends, and releases `reserve`
/// on a full disk.
pub fn start(
    writer: Writer,
    lock: DirLock,
    reserve: Reserve,
    metrics: Arc<Metrics>,
    on_fatal: OnFatal,
    early: Option<Early>,
) -> Worker<Job> {
    let state = State::Open { writer: Box::new(writer), waiting: None, _lock: lock };
    let mut thread = Thread { state, reserve, metrics, on_fatal, early };
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
            return self.rest();
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
        if self.is_flush_due() {
            self.flush();
        }
        Some(self.rest_after())
    }

    /// Returns the time until the flush of acknowledged entries, or until the mark of the last flush.
    fn rest_after(&self) -> Duration {
        let due = |early: &Early| Some(early.flush_within.saturating_sub(early.age()?));
        self.early.as_ref().and_then(due).unwrap_or(FLUSH_MARK_DELAY)
    }

    fn is_flush_due(&self) -> bool {
        self.early.as_ref().is_some_and(|early| early.age().is_some_and(|age| age >= early.flush_within))
    }

    /// Flushes the entries that were acknowledged early.
    fn flush(&mut self) {
        let State::Open { writer, .. } = &mut self.state else { return };
        match writer.flush() {
            Ok(()) => self.early.iter().for_each(|early| *early.unflushed.lock() = None),
            Err(unwritten) => self.fail(unwritten.failure()),
        }
    }

    /// Moves jobs into the batch, up to a close.
    fn fill(&mut self, batch: &mut RecordBatch, jobs: &mut impl Iterator<Item = Job>) {
        for job in jobs {
            match job {
                Job::Write { records, committed, early, done } => {
                    batch.add(records, committed, Some(done));
                    batch.early = batch.early.zip(early).map(|(sum, more)| sum + more);
                }
                Job::Close { committed, done } => {
                    batch.add(Vec::new(), committed, None);
                    (batch.close, batch.early) = (Some(done), None);
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
        if batch.early.is_none_or(|commands| !self.early.as_ref().is_some_and(|early| early.allows(commands)))
        {
            batch.early = None;
        }
        let mut result = batch.write(&mut self.state);
        if matches!(result, Err(Unwritten::NoRoom(_))) && self.reserve.release() {
            rare::taken(Rare::ReserveGivenUp);
            tracing::warn!(
                "the disk is full: the log continues in the space of the file `reserve`; free space on this file system"
            );
            result = batch.write(&mut self.state);
        }
        assert!(result.is_err() || !matches!(self.state, State::Failed(_)), "a failed log is not written");
        if let (Ok(()), Some(early)) = (&result, &mut self.early) {
            early.record(batch.early);
            if batch.close.is_some() && early.unmarked.is_none() {
                assert_eq!(early.age(), None, "a run is closed after its last flush");
                // Without the mark the next start counts as one after a loss, which is safe.
                early
                    .mark
                    .close()
                    .unwrap_or_else(|error| tracing::warn!(%error, "the clean stop is not marked"));
            }
        }
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
        self.state = State::Failed(failure.clone());
        self.report(failure);
    }

    /// Records the loss, then stops the node. Without the record the next start would count acknowledged
    /// entries as there, so the node keeps its process and retries; its log acknowledges nothing.
    fn report(&mut self, failure: DiskFailure) {
        assert!(matches!(self.state, State::Failed(_)), "nothing is acknowledged any more");
        if let Some(early) = &mut self.early
            && let Err(error) = early.mark.forget()
        {
            tracing::error!(
                %error,
                "the disk has failed, and the loss cannot be recorded: this node serves nothing and does not end; \
                 repair the disk, or remove this node from the cluster and its data folder"
            );
            early.unmarked = Some(failure);
            return;
        }
        (self.on_fatal)(&failure);
    }

    /// Uses a quiet period. Returns the time until the next call.
    fn rest(&mut self) -> Option<Duration> {
        if let Some(failure) = self.early.as_mut().and_then(|early| early.unmarked.take()) {
            self.report(failure);
            return self.early.as_ref().and_then(|early| early.unmarked.as_ref()).map(|_| MARK_PAUSE);
        }
        if self.early.as_ref().is_some_and(|early| early.age().is_some()) {
            self.flush();
            return Some(FLUSH_MARK_DELAY);
        }
        let State::Open { writer, .. } = &mut self.state else { return None };
        // On a full disk the mark is skipped: the next record carries the same offset.
        if let Err(Unwritten::Failed(failure)) = writer.mark_flushed() {
            self.fail(failure);
        }
        None
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
    acknowledged: Unflushed,
}

impl Log {
    pub(crate) fn new(memory: MemLog, worker: Worker<Job>, acknowledged: Unflushed) -> Self {
        // Recovery has flushed the recovered vote.
        let flushed_vote = Arc::new(Mutex::new(memory.checkpoint().vote));
        let bytes = Tally::default();
        bytes.set(memory.bytes());
        Log { memory: Arc::new(Mutex::new(memory)), bytes, flushed_vote, worker, acknowledged }
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
    pub fn writes_since(&self) -> Option<Instant> {
        self.worker.busy_since()
    }

    /// Returns the number of commands acknowledged before their flush, and the age of the oldest.
    pub fn unflushed(&self) -> Option<(u32, Duration)> {
        self.acknowledged.lock().map(|(commands, since)| (commands, since.elapsed()))
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
        self.append_as(entries, None, done).await
    }

    /// Appends entries like [`Log::append`]. With `early`, the number of commands, the worker completes
    /// `done` after the write if [`Acknowledge::Written`](crate::Acknowledge) is set, if no write in front
    /// waits for its flush, and within [`FORGOTTEN_MAX`](rowlock_state::FORGOTTEN_MAX) commands.
    pub async fn append_as(&self, entries: Vec<Entry>, early: Option<u32>, done: Done) -> io::Result<()> {
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
        self.write_as(records, early, done).await
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
        self.write_as(records, None, done).await
    }

    async fn write_as(&self, records: Vec<Record>, early: Option<u32>, done: Done) -> io::Result<()> {
        let committed = self.checkpoint().committed;
        self.submit(Job::Write { records, committed, early, done }).await
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
