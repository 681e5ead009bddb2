//! openraft's log storage: the log in memory for everybody who reads, the write-ahead log for what must last.
//!
//! Stands between openraft's core and `wal::worker`. Reads never touch the disk. It must never say that
//! something is durable by itself: only the worker does.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use openraft::errors::LeaderChanged;
use openraft::storage::{
    IOFlushed, LeaderBoundedStreamError, LeaderBoundedStreamResult, LogState, RaftLogReader, RaftLogStorage,
};
use openraft::{OptionalSend, RaftTypeConfig};
use parking_lot::Mutex;
use rowlock_env::busy_poll::BusyPoll;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time;
use rowlock_env::worker::Worker;
use rowlock_types::limits::REPLICATION_READ_MAX_BYTES;
use rowlock_types::observer::Observed;
use tokio::sync::oneshot;

use super::memlog::{Gap, MemLog};
use super::wal::record::Record;
use super::wal::worker::{Done, Job};
use crate::raft::thrift::Thrift;
use crate::raft::types::{Entry, LeaderId, LogId, TypeConfig, Vote, ballot, payload, position};

/// How long a write waits before it looks again whether the worker's queue has room.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// The log of this node. Clones are the same log; only openraft's core may write through it.
#[derive(Clone)]
pub struct LogStore {
    log: Arc<Mutex<MemLog>>,
    worker: Worker<Job>,
    observed: Observed,
    poll: BusyPoll,
    thrift: Thrift,
}

/// Reads the log, from any task.
#[derive(Clone)]
pub struct LogReader {
    log: Arc<Mutex<MemLog>>,
}

impl LogStore {
    pub(super) fn new(log: MemLog, worker: Worker<Job>) -> Self {
        let poll = BusyPoll::new(Duration::ZERO);
        LogStore {
            log: Arc::new(Mutex::new(log)),
            worker,
            observed: Observed::default(),
            poll,
            thrift: Thrift::default(),
        }
    }

    /// As it is, and its node stays awake for up to so long behind an entry, while that pays ([`BusyPoll`]).
    pub fn polled(self, window: Duration) -> Self {
        LogStore { poll: BusyPoll::new(window), ..self }
    }

    /// As it is, and `observed` hears of it, from what was found on the disk on.
    pub fn observed(self, observed: Observed) -> Self {
        let log = self.log.lock();
        observed.tell(|observer| {
            let found = log.checkpoint();
            let (purged, last) = (found.purged.map(position), found.last.map(position));
            observer.opened(found.vote.map(ballot), purged, last);
            log.entries().for_each(|entry| observer.appended(position(entry.log_id), payload(entry)));
        });
        drop(log);
        LogStore { observed, ..self }
    }

    /// Who hears of what happens to it.
    pub fn observer(&self) -> &Observed {
        &self.observed
    }

    /// Tells the log whose flushes may wait, and hears from it how far it is committed.
    pub fn thrift(&self) -> &Thrift {
        &self.thrift
    }

    /// Bytes of the log that are held in memory.
    pub fn bytes(&self) -> usize {
        self.log.lock().bytes()
    }

    /// Up to which index to purge so that `keep_bytes` stay. Walks what stays: ask only when there is too
    /// much.
    pub fn purge_point(&self, keep_bytes: usize) -> Option<u64> {
        self.log.lock().purge_point(keep_bytes)
    }

    /// Writes what is pending and lets go of the data folder; later writes fail. For the end of the node,
    /// after Raft's.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        let committed = self.log.lock().checkpoint().committed;
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
        let committed = self.log.lock().checkpoint().committed;
        self.submit(Job::Write { records, committed, done }).await
    }

    /// As `write`, of what no quorum waits for: it may wait a moment for more.
    async fn write_patiently(&self, records: Vec<Record>, done: Done) -> io::Result<()> {
        let committed = self.log.lock().checkpoint().committed;
        match self.worker.submit_patiently(Job::Write { records, committed, done }) {
            Ok(()) => Ok(()),
            Err(job) => self.submit(job).await,
        }
    }

    /// Writes, and returns when it is on disk.
    async fn write_durably(&self, record: Record) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.write(vec![record], Done::Waiter(done)).await?;
        written.await.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the log's thread has ended"))?
    }

    #[cfg(test)]
    pub(super) async fn replace_file(&self, file: rowlock_env::disk::File) {
        self.submit(Job::Replace(file)).await.expect("the worker runs");
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let checkpoint = *self.log.lock().checkpoint();
        Ok(LogState { last_purged_log_id: checkpoint.purged, last_log_id: checkpoint.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader { log: self.log.clone() }
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        // Readers compare the vote to notice a change of leader: they may see it early, never late.
        self.log.lock().set_vote(*vote);
        self.thrift.spare_to(0);
        if mutant::is(Mutant::VoteBeforeFlush) {
            self.write(vec![Record::Vote(*vote)], Done::Nobody).await?;
        } else if !mutant::is(Mutant::VoteInMemory) {
            self.write_durably(Record::Vote(*vote)).await?;
        }
        self.observed.tell(|observer| observer.voted(ballot(*vote)));
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.log.lock().set_committed(committed);
        if let Some(committed) = committed {
            self.thrift.committed(committed.index);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let checkpoint = *self.log.lock().checkpoint();
        Ok(if mutant::is(Mutant::CommittedTooHigh) { checkpoint.last } else { checkpoint.committed })
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.poll.work_has_come();
        let entries: Vec<Entry> = entries.into_iter().collect();
        let (mut records, mut last) = (Vec::with_capacity(entries.len()), None);
        {
            let mut log = self.log.lock();
            for entry in entries {
                last = Some(entry.log_id.index);
                records.push(Record::Entry(entry.clone()));
                log.append(entry).map_err(|gap: Gap| io::Error::new(io::ErrorKind::InvalidInput, gap))?;
            }
        }
        self.observed.tell(|observer| {
            for record in &records {
                if let Record::Entry(entry) = record {
                    observer.appended(position(entry.log_id), payload(entry));
                }
            }
        });
        if last.is_some_and(|last| self.thrift.is_spared(last)) {
            if mutant::is(Mutant::SparedAckBeforeFlush) {
                callback.io_completed(Ok(()));
                return self.write_patiently(records, Done::Nobody).await;
            }
            rare::taken(Rare::FlushSpared);
            self.write_patiently(records, Done::Flushed(callback)).await
        } else {
            self.write(records, Done::Flushed(callback)).await
        }
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        rare::taken(Rare::LogTruncated);
        self.log.lock().truncate_after(last_log_id);
        self.observed.tell(|observer| observer.truncated(last_log_id.map(position)));
        if mutant::is(Mutant::TruncateInMemory) {
            return Ok(());
        }
        self.write(vec![Record::Truncate(last_log_id)], Done::Nobody).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.log.lock().purge(log_id);
        self.observed.tell(|observer| observer.purged(position(log_id)));
        self.write(vec![Record::Purge(log_id)], Done::Nobody).await
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.log.lock().range(&range).cloned().collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.log.lock().checkpoint().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        Ok(self.log.lock().limited(&(start..end), REPLICATION_READ_MAX_BYTES))
    }

    /// Vote and entries are read under one lock, so the vote need not be read again behind the entries.
    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: LeaderId,
        range: RB,
    ) -> impl Stream<Item = LeaderBoundedStreamResult<TypeConfig>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let log = self.log.lock();
        let vote = log.checkpoint().vote;
        let items: Vec<LeaderBoundedStreamResult<TypeConfig>> =
            if vote.is_some_and(|vote| vote.leader_id == leader && vote.committed) {
                log.range(&range).cloned().map(Ok).collect()
            } else {
                vec![Err(LeaderBoundedStreamError::LeaderChanged(LeaderChanged::new(leader, vote)))]
            };
        stream::iter(items)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<<TypeConfig as RaftTypeConfig>::Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let items: Vec<io::Result<Entry>> = self.log.lock().range(&range).cloned().map(Ok).collect();
        stream::iter(items)
    }
}
