//! Log of a running node: in memory for readers, in the write-ahead log for durability.
//!
//! Reads never touch the disk. Only the worker reports durability, never this handle.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::worker::Worker;
use tokio::sync::oneshot;

use super::record::{Checkpoint, Record};
use super::worker::{Done, Job};
use crate::entry::{Entry, LogId, Vote};
use crate::memlog::{Gap, MemLog};

/// Pause between attempts to submit to a full queue.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// Log of this node. Clones share the log. A single task at a time may write; any task may read.
#[derive(Clone)]
pub struct Log {
    memory: Arc<Mutex<MemLog>>,
    /// Latest vote on disk.
    flushed_vote: Arc<Mutex<Option<Vote>>>,
    worker: Worker<Job>,
}

impl Log {
    pub(crate) fn new(memory: MemLog, worker: Worker<Job>) -> Self {
        // Recovery has flushed the recovered vote.
        let flushed_vote = Arc::new(Mutex::new(memory.checkpoint().vote));
        Log { memory: Arc::new(Mutex::new(memory)), flushed_vote, worker }
    }

    /// Locks the log in memory. Callers must not hold the guard across an await, nor for long.
    pub fn read(&self) -> MutexGuard<'_, MemLog> {
        self.memory.lock()
    }

    pub fn checkpoint(&self) -> Checkpoint {
        *self.memory.lock().checkpoint()
    }

    /// Returns the payload bytes of the entries in memory.
    pub fn bytes(&self) -> usize {
        self.memory.lock().bytes()
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
        {
            let mut memory = self.memory.lock();
            for entry in entries {
                records.push(Record::Entry(entry.clone()));
                memory.append(entry).map_err(|gap: Gap| io::Error::new(io::ErrorKind::InvalidInput, gap))?;
            }
            let last = memory.entries().next_back().map(|entry| entry.log_id);
            assert!(
                records.is_empty() || memory.checkpoint().last == last,
                "the last entry is the newest one"
            );
        }
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
        self.memory.lock().truncate_after(after);
        if mutant::is(Mutant::TruncateInMemory) {
            return Ok(());
        }
        self.write(vec![Record::Truncate(after)], Done::Unawaited).await
    }

    /// Removes the entries up to `upto`, inclusive; a snapshot covers them. Returns without a flush.
    pub async fn purge(&self, upto: LogId) -> io::Result<()> {
        self.memory.lock().purge(upto);
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
