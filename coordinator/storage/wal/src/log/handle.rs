//! The log of a running node: in memory for everybody who reads, in the write-ahead log for what must last.
//!
//! Reads never touch the disk. It must never say that something is durable by itself: only the worker does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_env::worker::Worker;
use tokio::sync::oneshot;

use super::record::{Checkpoint, Record};
use super::worker::{Done, Job};
use crate::entry::{Entry, LogId, Vote};
use crate::memlog::{Gap, MemLog};

/// How long a write waits before it looks again whether the worker's queue has room.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// The log of this node. Clones are the same log. One task at a time may write through it; everybody may
/// read.
#[derive(Clone)]
pub struct Log {
    memory: Arc<Mutex<MemLog>>,
    /// The latest vote that is on disk.
    flushed_vote: Arc<Mutex<Option<Vote>>>,
    worker: Worker<Job>,
}

impl Log {
    pub(crate) fn new(memory: MemLog, worker: Worker<Job>) -> Self {
        // What was read is on disk.
        let flushed_vote = Arc::new(Mutex::new(memory.checkpoint().vote));
        Log { memory: Arc::new(Mutex::new(memory)), flushed_vote, worker }
    }

    /// The log in memory. The guard must not be held across an await, nor for long.
    pub fn read(&self) -> MutexGuard<'_, MemLog> {
        self.memory.lock()
    }

    pub fn checkpoint(&self) -> Checkpoint {
        *self.memory.lock().checkpoint()
    }

    /// Bytes of the log that are held in memory.
    pub fn bytes(&self) -> usize {
        self.memory.lock().bytes()
    }

    /// Since when the oldest write waits for the disk, while one does. A write that found no room is not
    /// counted.
    pub fn unflushed_since(&self) -> Option<Instant> {
        self.worker.busy_since()
    }

    /// Up to which index to purge so that `keep_bytes` stay. Walks what stays: ask only when there is too
    /// much.
    pub fn purge_point(&self, keep_bytes: usize) -> Option<u64> {
        self.memory.lock().purge_point(keep_bytes)
    }

    /// Replaces the vote. It is on disk when this returns; readers may see it before. That the candidate of
    /// the stored vote was elected is on disk with the next write: a node that forgets it has broken no
    /// promise, and an election on slow disks does not wait for it.
    ///
    /// # Errors
    /// The disk has failed or the log is closed: the vote must not be sent.
    ///
    /// # Cancel safety
    /// The vote may reach the disk all the same.
    pub async fn save_vote(&self, vote: Vote) -> io::Result<()> {
        self.memory.lock().set_vote(vote);
        let only_confirms = vote.only_confirms(*self.flushed_vote.lock());
        if only_confirms || mutant::is(Mutant::VoteBeforeFlush) {
            self.write(vec![Record::Vote(vote)], Done::Nobody).await?;
        } else if !mutant::is(Mutant::VoteInMemory) {
            self.write_durably(vec![Record::Vote(vote)]).await?;
            *self.flushed_vote.lock() = Some(vote);
        }
        Ok(())
    }

    /// How far the log is known to be committed. Written with the next batch, never for itself.
    pub fn set_committed(&self, committed: Option<LogId>) {
        self.memory.lock().set_committed(committed);
    }

    /// Adds entries at the end, which readers see at once. `done` is told when they are on disk, or that they
    /// never will be.
    ///
    /// # Errors
    /// An entry does not continue the log (a bug of the caller), or the worker's queue does not move.
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

    /// As [`Log::append`], and returns when they are on disk.
    pub async fn append_durably(&self, entries: Vec<Entry>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.append(entries, Done::Waiter(done)).await?;
        written.await.map_err(|_| ended())?
    }

    /// Takes what is behind `after` out of the log; everything, if none. No caller waits for the disk:
    /// whatever is appended next covers it.
    pub async fn truncate_after(&self, after: Option<LogId>) -> io::Result<()> {
        rare::taken(Rare::LogTruncated);
        self.memory.lock().truncate_after(after);
        if mutant::is(Mutant::TruncateInMemory) {
            return Ok(());
        }
        self.write(vec![Record::Truncate(after)], Done::Nobody).await
    }

    /// Takes what is at or before `upto` out of the log, since a snapshot covers it. No caller waits for the
    /// disk.
    pub async fn purge(&self, upto: LogId) -> io::Result<()> {
        self.memory.lock().purge(upto);
        self.write(vec![Record::Purge(upto)], Done::Nobody).await
    }

    /// Writes what is pending and lets go of the data folder; later writes fail. For the end of the node,
    /// after Raft's.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        let committed = self.checkpoint().committed;
        if self.submit(Job::Close { committed, done }).await.is_ok() {
            let _ = closed.await; // the thread may have died of a bug: nothing is left to wait for
        }
    }

    /// Queues a job; waits while the queue is full.
    async fn submit(&self, mut job: Job) -> io::Result<()> {
        // A worker that has ended gives jobs back for ever; a full queue moves within one flush.
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

    /// Writes, and returns when it is on disk.
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
