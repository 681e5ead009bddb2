//! Classes of the entries: what a restart of the cluster undoes is acknowledged before the flush
//! (`docs/decisions/memory-locks.md`).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_state::command::{Batch, Proposal};
use rowlock_wal::{Entry, Payload};

use crate::applied_state::AppliedState;

/// Decides the class of each appended entry by the applied state.
///
/// Invariant: the state decides on an entry only if the entries in between, which the state lacks, are of the
/// lock class. An entry behind one of the other class is flushed, and its class is decided as soon as the
/// state has the effects of that other one. Without that late decision, the entries that wait for one slow
/// flush would make the next ones wait for theirs.
pub struct Classes {
    replica: Arc<AppliedState>,
    barrier: Mutex<VecDeque<Unapplied>>,
}

/// Entry that the applied state may lack and that is not known to be of the lock class.
struct Unapplied {
    index: u64,
    /// Commands whose class is not decided yet; `None` for the other class.
    undecided: Option<Bytes>,
}

impl Classes {
    /// Creates the classes of a log that ends at `last`.
    pub fn new(replica: Arc<AppliedState>, last: u64) -> Classes {
        let barrier = Mutex::new([Unapplied { index: last, undecided: None }].into());
        Classes { replica, barrier }
    }

    /// Returns the number of commands, if a restart undoes all commands of all entries. Entries come in the
    /// order of the log.
    pub fn of(&self, entries: &[Entry]) -> Option<u32> {
        let mut barrier = self.barrier.lock();
        self.decide(&mut barrier);
        let mut sum = Some(0);
        for entry in entries {
            let Payload::Normal(bytes) = &entry.payload else {
                sum = None;
                continue;
            };
            let (index, is_decidable) = (entry.log_id.index, barrier.is_empty());
            let commands = if is_decidable { self.commands(bytes) } else { None };
            assert!(commands != Some(0), "an entry without commands is of the other class");
            if commands.is_none() {
                assert!(barrier.back().is_none_or(|last| last.index <= index), "a log has an order");
                let undecided = (!is_decidable).then(|| bytes.clone());
                barrier.push_back(Unapplied { index, undecided });
            }
            sum = sum.zip(commands).map(|(sum, more)| sum + more);
        }
        sum
    }

    /// Forgets entries that left the log.
    pub fn truncate_after(&self, last: u64) {
        self.barrier.lock().retain(|entry| entry.index <= last);
    }

    /// Removes entries that the state has, and behind them those of the lock class.
    fn decide(&self, barrier: &mut VecDeque<Unapplied>) {
        let applied = self.replica.applied_index();
        while let Some(first) = barrier.front_mut() {
            let is_passed = first.index <= applied
                || first.undecided.take().is_some_and(|bytes| self.commands(&bytes).is_some());
            if !is_passed {
                return;
            }
            barrier.pop_front();
        }
    }

    /// Returns the number of commands, if a restart undoes all of them.
    fn commands(&self, bytes: &Bytes) -> Option<u32> {
        let count = |batch: &Batch| u32::try_from(batch.proposals.len()).ok().filter(|count| *count > 0);
        if mutant::is(Mutant::MixedClass) {
            return self.replica.batch_cache.peek(bytes, count);
        }
        self.replica.batch_cache.peek(bytes, |batch| {
            let state = self.replica.state.read();
            let is_undone = |proposal: &Proposal| state.is_undone_by_restart(&proposal.command);
            if batch.proposals.iter().all(is_undone) { count(batch) } else { None }
        })
    }
}

#[cfg(test)]
mod tests {
    use rowlock_proto::SessionId;
    use rowlock_proto::lock::Acquire;
    use rowlock_proto::request::Request;
    use rowlock_state::command::{Attachment, Command, Origin, Proof};

    use super::*;
    use crate::raft::stored;
    use crate::raft::testing::{blank_entry, log_id};
    use crate::raft_types::{Entry as RaftEntry, EntryPayload, Payload as RaftPayload};

    struct Log {
        replica: Arc<AppliedState>,
        classes: Classes,
        batches: Vec<Batch>,
        session: SessionId,
    }

    impl Log {
        /// Creates a log whose applied entries open a session and create the lock `/a`.
        fn new() -> Log {
            let replica: Arc<AppliedState> = Arc::default();
            let classes = Classes::new(replica.clone(), 0);
            let mut log = Log { classes, replica, batches: Vec::new(), session: SessionId::NONE };
            assert!(!log.append(open()));
            log.apply(1);
            assert!(!log.append(acquire("/a")), "the znode of the lock is new");
            log.apply(2);
            log
        }

        /// Appends an entry, and returns whether it is of the lock class.
        fn append(&mut self, command: Command) -> bool {
            let (session, origin) = (self.session, Origin::default());
            let (attachment, identities) = (Attachment(1), Default::default());
            let proposal = Proposal { origin, session, attachment, identities, command };
            let batch = Batch { time_ms: 1, proposals: vec![proposal], ..Batch::default() };
            let payload = EntryPayload::Normal(RaftPayload(batch.encode()));
            self.batches.push(batch);
            let entry = RaftEntry { log_id: log_id(1, self.batches.len() as u64), payload };
            self.classes.of(&[stored::entry(entry)]).is_some()
        }

        fn apply(&mut self, index: usize) {
            let mut machine = self.replica.state.write();
            let batch = &self.batches[index - 1];
            for proposal in &batch.proposals {
                let applied = machine.apply(batch.time_ms, proposal, &mut ());
                applied.result.expect("succeeds");
                self.session = applied.attached.map_or(self.session, |attached| attached.session);
            }
            self.replica.set_applied_index(index as u64);
        }
    }

    fn acquire(lock: &str) -> Command {
        Command::Client(Request::Acquire([Acquire::exclusive(lock, "x")].into()))
    }

    fn open() -> Command {
        Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 }
    }

    #[test]
    fn entries_behind_one_of_the_other_class_are_decided_with_its_effects() {
        let mut log = Log::new();
        assert!(!log.append(acquire("/b")), "the znode of the lock is new");
        assert!(!log.append(acquire("/b")), "the state lacks the znode");
        assert!(!log.append(acquire("/c")));
        log.apply(3);
        assert!(!log.append(acquire("/b")), "entry 5 is of the other class");
        log.apply(5);
        assert!(log.append(acquire("/c")), "entry 6 is of the lock class, although not applied");
        assert!(log.append(acquire("/b")));
    }

    #[test]
    fn a_truncated_entry_decides_nothing() {
        let mut log = Log::new();
        assert!(!log.append(open()));
        assert!(!log.append(acquire("/a")));
        log.batches.truncate(2);
        log.classes.truncate_after(2);
        assert!(log.append(acquire("/a")));
    }

    #[test]
    fn an_entry_without_commands_is_flushed_and_delays_no_decision() {
        let mut log = Log::new();
        assert_eq!(log.classes.of(&[stored::entry(blank_entry(2, 3))]), None);
        assert!(log.append(acquire("/a")));
    }
}
