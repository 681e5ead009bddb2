//! Votes of nodes that may have forgotten acknowledged entries, and their admission
//! (`docs/decisions/memory-locks.md`, rules 3 to 5).
//!
//! A node that acknowledges entries about locks before their flush forgets entries with the machine's power,
//! and knows so ([`rowlock_wal::RunMark`]). Such a node follows leaders and acknowledges, but its vote does
//! not count for a usual leader, who would continue without the forgotten entries. If no quorum that
//! remembers is there, voters elect a leader by Raft's rules all the same, and the first entry of that leader
//! restarts the cluster: all sessions end, and no session opens before every former holder of a lock has
//! given up.
//!
//! Invariant: a candidate requests the votes of one term for one purpose. A usual request gets no vote of a
//! node that has forgotten; the first entry of a term with requests for a restart is a restart.
//!
//! Invariant: a node remembers again once it has the last entry of a leader whose term it follows, as of a
//! moment after the loss. No vote is under way during the change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use openraft::storage::RaftStateMachine;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::worker;
use rowlock_proto::NodeId;
use rowlock_wal::{Memory, RunMark, StorageError};
use tokio::sync::{Mutex, MutexGuard};

use crate::raft_types::TypeConfig;

/// First entry of a leadership that restarts the cluster.
#[derive(Clone)]
pub struct RestartEntry {
    pub node: NodeId,
    /// Makes the payload of one restart.
    pub payload: Arc<dyn Fn() -> Bytes + Send + Sync>,
}

/// Memory of this node's acknowledgements. Clones share the state.
#[derive(Clone, Default)]
pub struct Recollection(Arc<Recollected>);

#[derive(Default)]
struct Recollected {
    /// `None` in tests without a folder: the memory is whole.
    mark: Option<Arc<RunMark>>,
    /// Held while a node that has forgotten votes or stands, and during its admission.
    voting: Mutex<()>,
    /// Last term for which this node stood to restart the cluster; 0: never.
    restart_term: AtomicU64,
}

/// Leader that may admit a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitter {
    pub leader: NodeId,
    pub term: u64,
    /// Last index of the leader's log, at a moment after the start of the admitted node.
    pub last_index: u64,
}

impl Recollection {
    pub fn of(mark: Arc<RunMark>) -> Recollection {
        Recollection(Arc::new(Recollected { mark: Some(mark), ..Recollected::default() }))
    }

    pub fn memory(&self) -> Memory {
        self.0.mark.as_ref().map_or(Memory::Whole, |mark| mark.memory())
    }

    pub fn is_whole(&self) -> bool {
        self.memory() == Memory::Whole
    }

    /// Returns whether this node's vote counts for a usual leader.
    pub(super) fn votes_usually(&self) -> bool {
        self.is_whole() || mutant::is(Mutant::VotesThoughForgotten)
    }

    /// Waits until no vote of this node and no admission is under way.
    pub(super) async fn voting(&self) -> MutexGuard<'_, ()> {
        self.0.voting.lock().await
    }

    /// Records that the next candidacy of this node, in `term`, is for a restart.
    pub(super) fn stands_for_restart(&self, term: u64) {
        let before = self.0.restart_term.swap(term, Ordering::AcqRel);
        assert!(before <= term, "terms only grow");
    }

    /// Returns whether this node's candidacy in `term` is for a restart.
    pub fn is_restart(&self, term: u64) -> bool {
        self.0.restart_term.load(Ordering::Acquire) == term
    }

    /// Returns whether a leadership of this node in `term` restarts the cluster: also one that came about
    /// without the vote of another node.
    pub(super) fn restarts_in(&self, term: u64) -> bool {
        let restarts = self.is_restart(term) || !self.votes_usually();
        if restarts {
            rare::taken(Rare::RestartElected);
        }
        restarts && !mutant::is(Mutant::VotesWithoutRestart)
    }

    /// Demands that this node drops its state at the next start. Waits for the disk.
    pub async fn drop_state(&self) -> Result<(), StorageError> {
        let _held = self.voting().await;
        let Some(mark) = self.0.mark.clone() else { return Ok(()) };
        worker::run_blocking("run-mark", move || mark.demand_drop()).await?;
        assert_eq!(self.memory(), Memory::Dropped, "this node votes no more");
        Ok(())
    }

    /// Counts this node as one that remembers, if this node follows that leader and has the leader's last
    /// entry. Returns whether this node remembers now.
    ///
    /// # Errors
    /// The admission cannot be recorded.
    pub async fn admit<SM: RaftStateMachine<TypeConfig>>(
        &self,
        raft: &openraft::Raft<TypeConfig, SM>,
        by: Admitter,
    ) -> Result<bool, StorageError> {
        assert!(by.term > 0, "a leader has a term");
        let _held = self.voting().await;
        let Some(mark) = self.0.mark.clone().filter(|mark| mark.memory() != Memory::Whole) else {
            return Ok(true);
        };
        // The last entry of a leader is one of its own term. An entry of that term at the end of this log
        // comes from that leader, with all entries before.
        let has_last = raft.with_raft_state(move |state| {
            let vote = state.vote_ref();
            let follows =
                vote.committed && (vote.leader_id.term, vote.leader_id.node_id) == (by.term, by.leader.0);
            let last = state.log_ids.last().copied();
            assert!(last.is_none_or(|last| last.leader_id <= vote.leader_id), "no entry is beyond the vote");
            let has_last =
                last.is_some_and(|last| last.leader_id == vote.leader_id && last.index >= by.last_index);
            follows && (has_last || mutant::is(Mutant::AdmittedAtOnce))
        });
        if !matches!(has_last.await, Ok(true)) {
            return Ok(false);
        }
        worker::run_blocking("run-mark", move || mark.admitted()).await?;
        assert!(self.is_whole(), "an admitted node remembers");
        tracing::info!(leader = %by.leader, term = by.term, "admitted after a loss of unflushed entries");
        Ok(true)
    }
}
