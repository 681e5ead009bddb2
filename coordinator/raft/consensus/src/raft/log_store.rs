//! openraft's log storage, on the log of the disk (`rowlock_wal`).
//!
//! This adapter translates between openraft's core and [`Log`], and reports to the hook. Reads never touch
//! the disk. Only the log, never this adapter, may declare an entry durable.

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
use rowlock_env::busy_poll::BusyPoll;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_transport::limits::PEER_FRAME_MAX_BYTES;
use rowlock_wal::memlog::MemLog;
use rowlock_wal::{Done, Log};

use super::classes::Classes;
use super::recollection::{Recollection, RestartEntry};
use super::stored;
use crate::entry_times::EntryTimes;
use crate::limits::{BATCH_MAX_BYTES, REPLICATION_READ_MAX_BYTES};
use crate::node_hook::{Hook, NodeHook};
use crate::raft_types::{Entry, LeaderId, LogId, TypeConfig, Vote};

// Checks that entries read together fit into a frame.
const _: () = assert!(REPLICATION_READ_MAX_BYTES + BATCH_MAX_BYTES < PEER_FRAME_MAX_BYTES);

/// The log of this node. Clones share the log; only openraft's core may write.
#[derive(Clone)]
pub struct LogStore {
    log: Log,
    hook: Hook,
    poll: BusyPoll,
    times: Arc<EntryTimes>,
    recollection: Recollection,
    restart: Option<RestartEntry>,
    classes: Option<Arc<Classes>>,
}

#[derive(Clone)]
pub struct LogReader {
    log: Log,
}

impl LogStore {
    pub fn new(log: Log) -> Self {
        let poll = BusyPoll::new(Duration::ZERO);
        let (recollection, restart, classes) = (Recollection::default(), None, None);
        LogStore { log, hook: Hook::default(), poll, times: Arc::default(), recollection, restart, classes }
    }

    /// Begins the leaderships that `recollection` demands with `restart`. With `classes`, acknowledges
    /// entries before the flush.
    pub fn remembering(
        self,
        recollection: Recollection,
        restart: Option<RestartEntry>,
        classes: Option<Classes>,
    ) -> Self {
        LogStore { recollection, restart, classes: classes.map(Arc::new), ..self }
    }

    /// Records arrival and flush of entries in `times`.
    pub fn timed(self, times: Arc<EntryTimes>) -> Self {
        LogStore { times, ..self }
    }

    /// Keeps the node awake for up to this time after an entry, while polling pays ([`BusyPoll`]).
    pub fn polled(self, window: Duration) -> Self {
        LogStore { poll: BusyPoll::new(window), ..self }
    }

    /// Reports to `hook`, beginning with the entries found on the disk.
    pub fn hooked(self, hook: Hook) -> Self {
        let log = self.log.read();
        hook.notify(|hook| {
            let found = log.checkpoint();
            let (purged, last) = (found.purged.map(stored::position), found.last.map(stored::position));
            hook.opened(found.vote.map(stored::ballot), purged, last, self.recollection.is_whole());
            log.entries().for_each(|entry| report(hook, entry));
        });
        drop(log);
        LogStore { hook, ..self }
    }

    pub fn hook(&self) -> &Hook {
        &self.hook
    }

    /// Replaces the first entry of a leadership of this node that restarts the cluster. Followers, the
    /// state machine and this log see only the replacement: the entry is as old as the leadership.
    fn put_restart(&self, entries: &mut [rowlock_wal::Entry]) {
        let Some(restart) = &self.restart else { return };
        for entry in entries.iter_mut().filter(|entry| entry.payload == rowlock_wal::Payload::Blank) {
            let vote = self.log.checkpoint().vote.map(|vote| vote.leader_id);
            let by = entry.log_id.leader_id;
            // An older entry of this node comes again from a later leader, for whom this node has voted.
            assert!(vote >= Some(by), "a log has no entry of a leader beyond its vote");
            if Some(by) == vote && by.node_id == restart.node.0 && self.recollection.restarts_in(by.term) {
                entry.payload = rowlock_wal::Payload::Normal((restart.payload)());
            }
        }
    }

    /// Returns the log itself. Only openraft's core may write to the log.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

/// Returns whether the log has another entry at that position, as far as the log knows.
pub fn contradicts(log: &MemLog, id: LogId) -> bool {
    let ours = |at: Option<rowlock_wal::LogId>| at.map(stored::raft_log_id);
    if let Some(purged) = ours(log.checkpoint().purged)
        && id.index <= purged.index
    {
        // An earlier entry of a later leader cannot be in this log.
        return if id.index == purged.index { id != purged } else { id.leader_id > purged.leader_id };
    }
    let there = log.range(&(id.index..=id.index)).next().map(|entry| entry.log_id);
    ours(there).is_some_and(|there| there != id)
}

fn report(hook: &dyn NodeHook, entry: &rowlock_wal::Entry) {
    let position = stored::position(entry.log_id);
    if let Some((voters, learners)) = stored::members(entry) {
        hook.members(position, &voters, &learners);
    }
    hook.appended(position, stored::commands(entry));
}

/// Reports the outcome of a flush to openraft.
fn flushed(callback: IOFlushed<TypeConfig>) -> Done {
    Done::Callback(Box::new(move |result| callback.io_completed(result)))
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let checkpoint = self.log.checkpoint();
        Ok(LogState {
            last_purged_log_id: checkpoint.purged.map(stored::raft_log_id),
            last_log_id: checkpoint.last.map(stored::raft_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        LogReader { log: self.log.clone() }
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        // Readers compare the vote to detect a change of leader: an early vote is safe, a late one is not.
        let vote = stored::vote(*vote);
        self.log.save_vote(vote).await?;
        self.hook.notify(|hook| hook.voted(stored::ballot(vote)));
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.log.set_committed(committed.map(stored::log_id));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let checkpoint = self.log.checkpoint();
        let is_mutant = mutant::is(Mutant::CommittedTooHigh);
        let committed = if is_mutant { checkpoint.last } else { checkpoint.committed };
        Ok(committed.map(stored::raft_log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.poll.work_has_come();
        let mut entries: Vec<_> = entries.into_iter().map(stored::entry).collect();
        self.put_restart(&mut entries);
        let early = self.classes.as_ref().and_then(|classes| classes.of(&entries));
        self.hook.notify(|hook| {
            entries.iter().for_each(|entry| report(hook, entry));
        });
        let follows = |two: &[rowlock_wal::Entry]| two[0].log_id.index + 1 == two[1].log_id.index;
        assert!(entries.windows(2).all(follows), "openraft appends entries without gaps");
        let Some((first, last)) = entries.first().zip(entries.last()) else {
            return self.log.append(entries, flushed(callback)).await;
        };
        let (times, last) = (self.times.clone(), last.log_id.index);
        times.appended(first.log_id.index, last);
        let done = move |result: io::Result<()>| {
            if result.is_ok() {
                times.flushed(last);
            }
            callback.io_completed(result);
        };
        self.log.append_as(entries, early, Done::Callback(Box::new(done))).await
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let after = last_log_id.map(stored::log_id);
        self.hook.notify(|hook| hook.truncated(after.map(stored::position)));
        if let Some(classes) = &self.classes {
            classes.truncate_after(after.map_or(0, |after| after.index));
        }
        self.log.truncate_after(after).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let upto = stored::log_id(log_id);
        self.hook.notify(|hook| hook.purged(stored::position(upto)));
        self.log.purge(upto).await
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.entries(&range))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.log.checkpoint().vote.map(stored::raft_vote))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        // The first entry is read whatever its size.
        let is_one = choice::taken(Choice::EntriesOneByOne, 5);
        let most = if is_one { 0 } else { REPLICATION_READ_MAX_BYTES };
        let entries = self.log.read().limited(&(start..end), most);
        let is_within = |entry: &rowlock_wal::Entry| (start..end).contains(&entry.log_id.index);
        debug_assert!(entries.iter().all(is_within), "only what was asked for is read");
        Ok(entries.into_iter().map(stored::raft_entry).collect())
    }

    /// Reads vote and entries under one lock, so that the vote need not be read again after the entries.
    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: LeaderId,
        range: RB,
    ) -> impl Stream<Item = LeaderBoundedStreamResult<TypeConfig>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let log = self.log.read();
        let vote = log.checkpoint().vote.map(stored::raft_vote);
        let items: Vec<LeaderBoundedStreamResult<TypeConfig>> = if vote.is_some_and(|vote| {
            decides!("stored-vote-is-of-leader", vote.leader_id == leader && vote.committed)
        }) {
            log.range(&range).cloned().map(|entry| Ok(stored::raft_entry(entry))).collect()
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
        stream::iter(self.entries(&range).into_iter().map(Ok))
    }
}

impl LogReader {
    fn entries(&self, range: &impl RangeBounds<u64>) -> Vec<Entry> {
        self.log.read().range(range).cloned().map(stored::raft_entry).collect()
    }
}
