//! The leader's creation of log entries: all queued commands form one entry, and a few entries are in flight.
//!
//! Batching matters more for throughput than anything else (docs/decisions/speed.md). Under load hundreds of
//! commands share a flush and a round trip, and an idle leader waits for nothing. An entry costs far more
//! than a command in the entry. So commands that arrive while an entry is in flight are collected, and leave
//! together once the entry is applied.

mod line;
mod selection;

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use rowlock_env::busy::{self, Work};
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Metrics;
use rowlock_proto::Request;
use rowlock_proto::{Acl, Id, NodeId};
use rowlock_state::command::{Batch, Command, Ordinal, Proposal};
use std::sync::Arc;

use crate::applied_state::AppliedState;
use crate::limits::{
    BATCH_MAX_COMMANDS, BATCHES_IN_FLIGHT_MAX, COALESCE_DELAY_MAX, FEW_COMMANDS, IN_FLIGHT_DELAY_MAX,
};
use crate::log_clock::LogClock;
use crate::raft::Raft;
use crate::raft::facts;
use crate::raft_types::{EntryOutcome, Payload, TypeConfig};
pub use line::ProposalQueue;
use selection::Selection;

/// Pause before an entry that Raft refused is proposed again.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// Delay of a simulated refusal, so late that Raft has accepted other entries.
const REFUSED_LATE: Duration = Duration::from_millis(5);

/// Proposals for the leader of `term`; dropped when the term has ended (the origins have given up these
/// proposals by then).
#[derive(Debug)]
pub struct TermBatch {
    pub term: u64,
    /// Proposals in the order of the sender.
    pub proposals: Vec<Proposal>,
}

/// Dependencies for creating log entries.
pub struct Maker {
    pub me: NodeId,
    pub raft: Raft,
    /// The entries of this leader enforce hard quotas.
    pub enforce_quota: bool,
    /// Only superusers may end another session's hold on locks without a rule.
    pub guard_locks: bool,
    pub replica: Arc<AppliedState>,
    pub clock: Arc<LogClock>,
    pub metrics: Arc<Metrics>,
}

/// Log entries that this node creates while leading. Owned by the intake task, which also owns the queue of
/// proposals.
pub struct Entries {
    maker: Maker,
    /// Term in which this node creates entries while leading.
    term: u64,
    /// Number of the latest entry.
    made: Ordinal,
    proposed: Instant,
    /// Proposed entries without a result. Each yields its number of commands, and the entry itself if no part
    /// of the entry is or will be applied: Raft refused the entry, or accepted the entry ahead of an earlier
    /// one. Otherwise the entry is applied; or the term ended, or Raft stops: then the origins see the change
    /// of leadership and give up.
    in_flight: FuturesUnordered<BoxFuture<'static, (usize, Option<MadeEntry>)>>,
    /// Commands in all entries in flight.
    commands: usize,
    /// Refused or skipped entries of this term, to be proposed again.
    undone: BTreeMap<Ordinal, MadeEntry>,
    again_at: Instant,
}

/// Log entry that is encoded and ready to be proposed.
struct MadeEntry {
    ordinal: Ordinal,
    commands: usize,
    payload: Payload,
}

impl Entries {
    pub fn new(maker: Maker) -> Entries {
        let (in_flight, undone, now) = (FuturesUnordered::new(), BTreeMap::new(), time::now());
        let made = Ordinal::default();
        Entries { maker, term: 0, made, proposed: now, in_flight, commands: 0, undone, again_at: now }
    }

    /// Starts a new term: entries of an earlier leader are not proposed again.
    pub fn begin_term(&mut self, term: u64) {
        assert!(self.term <= term, "terms rise");
        self.term = term;
        self.undone.retain(|ordinal, _| ordinal.term == term);
    }

    /// Returns the time when the next entry may be proposed: a refused one, or the next one of this queue.
    /// `None`: there is no such entry, or too many are in flight; then [`Entries::moved`] resolves when an
    /// entry has a result.
    pub fn due(&self, line: &ProposalQueue) -> Option<Instant> {
        let under_way = self.in_flight.len() + self.undone.len();
        assert!(under_way <= BATCHES_IN_FLIGHT_MAX, "no more entries are made than may be in flight");
        if decides!("refused-entries-wait", !self.undone.is_empty()) {
            self.in_flight.is_empty().then_some(self.again_at)
        } else if decides!("no-entry-can-be-made", under_way == BATCHES_IN_FLIGHT_MAX || line.is_empty()) {
            None
        } else if line.is_full() {
            Some(self.proposed)
        } else if self.commands >= FEW_COMMANDS {
            Some(self.proposed + IN_FLIGHT_DELAY_MAX)
        } else if decides!("entry-may-coalesce", self.may_coalesce(line)) {
            Some(line.since() + COALESCE_DELAY_MAX)
        } else {
            Some(self.proposed)
        }
    }

    /// Waits for the result of an entry; for ever while none is in flight. Cancel safe.
    pub async fn moved(&mut self) {
        let Some((commands, undone)) = self.in_flight.next().await else { return pending().await };
        assert!(self.commands >= commands, "an entry that comes back was counted");
        self.commands -= commands;
        assert!(!self.in_flight.is_empty() || self.commands == 0, "without entries no command is in flight");
        if let Some(entry) =
            undone.filter(|entry| decides!("refused-entry-is-of-this-term", entry.ordinal.term == self.term))
        {
            self.again_at = time::now() + REFUSED_PAUSE;
            let twin = self.undone.insert(entry.ordinal, entry);
            assert!(twin.is_none(), "two entries have one number");
            let under_way = self.in_flight.len() + self.undone.len();
            assert!(under_way <= BATCHES_IN_FLIGHT_MAX, "an entry that comes back is counted once");
        }
    }

    /// Proposes the entry that is [due](Entries::due). Called only while this node may propose.
    pub async fn propose(&mut self, line: &mut ProposalQueue) {
        if !self.undone.is_empty() {
            return self.propose_again().await;
        }
        let mut proposals = line.take();
        self.refuse_growth(&mut proposals);
        let proposals = self.select(proposals, line);
        (self.made, self.proposed) = (self.next_ordinal(), time::now());
        let commands = proposals.len();
        let entry = MadeEntry { ordinal: self.made, commands, payload: self.stamp(proposals) };
        self.hand_over(entry).await;
    }

    /// Proposes refused and skipped entries again, until the end of the term. A leader refuses entries while
    /// its quorum is silent, and during a transfer of leadership. The term may continue, so no other task
    /// learns of the refusal. Every node skips later entries that Raft accepted in the meantime; these
    /// entries return here, too.
    ///
    /// Invariant: entries keep their order and their numbers, and precede every new entry.
    async fn propose_again(&mut self) {
        assert!(self.in_flight.is_empty(), "no entry overtakes those that are proposed again");
        let undone = std::mem::take(&mut self.undone);
        assert!(undone.keys().is_sorted(), "they are proposed in their order");
        let is_of_term = undone.keys().all(|ordinal| ordinal.term == self.term);
        assert!(is_of_term, "nothing is proposed again in another term");
        for entry in undone.into_values() {
            rare::taken(Rare::EntryProposedAgain);
            self.hand_over(entry).await;
        }
    }

    /// Returns whether these commands are few and lose nothing by waiting for others.
    fn may_coalesce(&self, line: &ProposalQueue) -> bool {
        line.len() < FEW_COMMANDS
            && selection::all_only_join_queues(line.iter(), &self.maker.replica.state.read())
    }

    /// Returns the number of the next entry, behind the last one created here.
    ///
    /// Invariant: called only while this node may propose. So all entries of the term from a former life of
    /// this task are applied.
    fn next_ordinal(&self) -> Ordinal {
        let (last, term) = (self.made, self.term);
        let last = if last.term == term { last } else { self.maker.replica.state.read().last_entry() };
        let next = last.next_in(term);
        assert_eq!(next.term, term, "an entry is numbered in the term that it is proposed in");
        assert!(last.term < term || last.number < next.number, "the numbers of a term rise");
        next
    }

    /// Returns the commands of this entry, and returns the rest to the queue.
    fn select(&self, proposals: Vec<Proposal>, line: &mut ProposalQueue) -> Vec<Proposal> {
        let waiting = proposals.len();
        let Selection { entry, rest, refused } =
            selection::select(proposals, &self.maker.replica.state.read());
        assert_eq!(entry.len() + rest.len(), waiting, "no command is lost between two entries");
        assert!(!entry.is_empty() || waiting == 0, "the first command always goes with the entry");
        assert!(refused <= entry.len() as u64, "a refusal stands in the entry");
        self.maker.metrics.commands_refused_total.add(refused);
        if refused > 0 {
            tracing::debug!(refused, "commands refused: too expensive for the log");
        }
        if !rest.is_empty() {
            line.push_front(rest);
        }
        entry
    }

    /// Refuses growing commands while this node is above its memory limit, or while no majority of the voters
    /// has room on its disks.
    fn refuse_growth(&self, proposals: &mut [Proposal]) {
        let has_memory = !self.maker.replica.memory.is_full();
        let has_room = self
            .maker
            .replica
            .room
            .suffices(self.term, self.maker.me, || facts::voter_sets(&self.maker.raft));
        if decides!("state-may-grow", has_memory && has_room) {
            return;
        }
        let refused = selection::refuse(proposals, &self.maker.replica.state.read());
        assert!(refused <= proposals.len() as u64, "a command is refused once");
        if has_memory {
            self.maker.metrics.growth_refused_for_room_total.add(refused);
            rare::taken(Rare::GrowthRefusedForRoom);
        } else {
            self.maker.metrics.growth_refused_total.add(refused);
        }
    }

    fn stamp(&self, proposals: Vec<Proposal>) -> Payload {
        self.maker.metrics.batches_total.inc();
        let compares = |proposal: &Proposal| {
            matches!(proposal.command, Command::CompareDigests | Command::DigestAt { .. })
        };
        if proposals.iter().all(compares) {
            self.maker.metrics.comparison_batches_total.inc();
        }
        self.maker.metrics.batch_commands.record(proposals.len());
        let Maker { enforce_quota, guard_locks, .. } = self.maker;
        let time_ms = self.maker.clock.now_ms();
        let batch = Batch { time_ms, enforce_quota, guard_locks, ordinal: self.made, proposals };
        let bytes = batch.encode_as(self.maker.replica.version());
        debug_assert_eq!(Batch::decode(&bytes).ok().as_ref(), Some(&batch), "it is read as it was written");
        busy::spend(Work::Command, batch.proposals.len() as u64);
        busy::spend(Work::LogByte, bytes.len() as u64);
        self.maker.replica.batch_cache.keep(bytes.clone(), batch);
        Payload(bytes)
    }

    async fn hand_over(&mut self, entry: MadeEntry) {
        assert!(
            self.in_flight.len() < BATCHES_IN_FLIGHT_MAX,
            "an entry is proposed only where there is room"
        );
        let Ok(leader) = self.maker.raft.as_leader() else { return };
        if decides!("entry-meets-other-term", leader.leader_id().term != entry.ordinal.term) {
            return;
        }
        if choice::taken(Choice::EntryRefused, 50) {
            return self.track(entry.commands, async move {
                time::sleep(REFUSED_LATE).await;
                Some(entry)
            });
        }
        let (metrics, started) = (self.maker.metrics.clone(), Instant::now());
        let (responder, answer) =
            ProgressResponder::<TypeConfig, ClientWriteResult<TypeConfig>>::complete_only();
        let payload = Payload(entry.payload.0.clone());
        let write =
            self.maker.raft.write(payload).with_leader(leader.to_committed_leader_id()).responder(responder);
        if let Err(fatal) = write.await {
            tracing::error!(error = %fatal, "Raft has stopped; this node must be restarted");
            return;
        }
        self.track(entry.commands, async move {
            match answer.await {
                Ok(Ok(done)) if decides!("entry-was-skipped", done.data == EntryOutcome::Skipped) => {
                    Some(entry)
                }
                Ok(Ok(_)) => {
                    metrics.commit_seconds.record(started.elapsed());
                    None
                }
                // openraft documents this error as: rejected before the entry was appended.
                Ok(Err(ClientWriteError::ForwardToLeader(e))) => {
                    tracing::debug!(error = %e, reason = ?e.reason, "an entry was refused");
                    rare::taken(Rare::EntryRefused);
                    Some(entry)
                }
                Ok(Err(e)) => {
                    rare::taken(Rare::EntryGivenUp);
                    tracing::debug!(error = %e, "an entry was given up");
                    None
                }
                Err(_) => {
                    tracing::debug!("Raft dropped an entry while stopping");
                    None
                }
            }
        });
    }

    fn track(&mut self, commands: usize, ended: impl Future<Output = Option<MadeEntry>> + Send + 'static) {
        assert!(commands <= BATCH_MAX_COMMANDS, "an entry has no more commands than one may have");
        self.commands += commands;
        self.in_flight.push(ended.map(move |undone| (commands, undone)).boxed());
    }
}

/// Estimates the bytes of a proposal in the log.
pub fn weight(proposal: &Proposal) -> usize {
    weight_of(&proposal.command, &proposal.identities)
}

/// Estimates the bytes of a command and of the identities on whose behalf the command runs.
pub fn weight_of(command: &Command, identities: &[Id]) -> usize {
    use rowlock_proto::lock::Claim;
    use rowlock_proto::request::Op;
    const OVERHEAD: usize = 64;
    let of_id = |id: &Id| OVERHEAD + id.scheme.len() + id.id.len();
    let of_acl =
        |acl: Option<&[Acl]>| acl.unwrap_or_default().iter().map(|entry| of_id(&entry.id)).sum::<usize>();
    let of_create = |c: &rowlock_proto::request::Create| {
        c.path.len() + c.data.as_ref().map_or(0, |d| d.len()) + of_acl(c.acl.as_deref())
    };
    let of_claims = |claims: &[Claim]| claims.iter().map(|claim| OVERHEAD + claim.path.len()).sum::<usize>();
    let of_op = |op: &Op| match op {
        Op::Create(c) | Op::Create2(c) | Op::CreateContainer(c) | Op::CreateTtl(c, _) => of_create(c),
        Op::SetData(set) => set.path.len() + set.data.as_ref().map_or(0, |d| d.len()),
        Op::Delete { path, .. } | Op::Check { path, .. } => path.len(),
    };
    let of_data = |data: &Option<bytes::Bytes>| data.as_ref().map_or(0, |data| data.len());
    let of_request = |request: &Request| match request {
        Request::Create(create)
        | Request::Create2(create)
        | Request::CreateContainer(create)
        | Request::CreateTtl(create, _) => of_create(create),
        Request::SetData(set) => set.path.len() + of_data(&set.data),
        Request::Delete { path, .. } | Request::Sync(path) => path.len(),
        Request::Multi(ops) => ops.iter().map(|op| OVERHEAD + of_op(op)).sum(),
        Request::SetAcl(set) => set.path.len() + of_acl(set.acl.as_deref()),
        Request::Acquire(all) => all
            .iter()
            .map(|a| OVERHEAD + a.lock.len() + a.prefix.len() + of_data(&a.data) + of_acl(a.acl.as_deref()))
            .sum(),
        Request::Release(claims) | Request::Verify(claims) => of_claims(claims),
        Request::ForceRelease(claim) => claim.path.len(),
        Request::Convert { claim, prefix, .. } => claim.path.len() + prefix.len(),
        Request::Abandon(all) => all.iter().map(|a| OVERHEAD + a.lock.len() + a.prefix.len()).sum(),
        Request::Ask(ask) => ask.lock.len() + ask.reason.len() + ask.by.len(),
        _ => 0,
    };
    let payload = match command.untagged() {
        Command::Client(request) => of_request(request),
        Command::Fenced { claim, change } => OVERHEAD + claim.path.len() + of_op(change),
        Command::Reap { path } | Command::LockDue { lock: path } => path.len(),
        Command::Configure { config } => config.len(),
        _ => 0,
    };
    OVERHEAD + identities.iter().map(of_id).sum::<usize>() + payload
}
