//! The leader makes log entries: it puts all waiting commands into one entry, and keeps a few entries in
//! flight.
//!
//! Batching matters more for throughput than anything else (docs/decisions/speed.md). Under load hundreds of
//! commands share a flush and a round trip, and an idle leader waits for nothing. An entry costs far more
//! than a command in it. So commands that arrive while an entry is in flight are collected, and leave
//! together as soon as that entry is applied.

mod coalesce;
mod entry_builder;
mod growth;
mod judge;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use rowlock_env::busy::{self, Work};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_env::world;
use rowlock_proto::{Acl, Id, NodeId};
use rowlock_state::command::{Batch, Command, Ordinal, Proposal};
use rowlock_types::limits::BATCHES_IN_FLIGHT_MAX;
use rowlock_types::metrics::Metrics;
use rowlock_types::pacing::{COALESCE_DELAY_MAX, FEW_COMMANDS, IN_FLIGHT_DELAY_MAX};
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::applied_state::AppliedState;
use crate::log_clock::LogClock;
use crate::raft::Raft;
use crate::raft::facts;
use crate::raft::leadership::Leadership;
use crate::raft_types::{EntryOutcome, Payload, TypeConfig};
use entry_builder::EntryBuilder;
use judge::Judged;

/// Before an entry that Raft has refused is proposed again.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// In a simulated world Raft refuses one entry of this number. The refusal comes so late that Raft has taken
/// other entries meanwhile.
const REFUSED_ONE_IN: u64 = 200;
const REFUSED_LATE: Duration = Duration::from_millis(5);

/// Proposals for the leader of `term`; dropped if that term is over (their origins have given them up by
/// then).
#[derive(Debug)]
pub struct TermBatch {
    /// The term in which they were accepted.
    pub term: u64,
    /// In their sender's order.
    pub proposals: Vec<Proposal>,
}

/// The task that makes log entries. Ends with the shutdown or with Raft.
pub struct Batcher {
    pub me: NodeId,
    pub raft: Raft,
    /// Whether this node may propose.
    pub leadership: watch::Receiver<Leadership>,
    /// From the router, from other nodes, from session expiry.
    pub queue: mpsc::Receiver<TermBatch>,
    /// Whether the batches of this leader enforce hard quotas.
    pub enforce_quota: bool,
    /// Tells which locks are free.
    pub replica: Arc<AppliedState>,
    pub clock: Arc<LogClock>,
    /// Batch sizes and commit latency.
    pub metrics: Arc<Metrics>,
}

/// A log entry, made and to be proposed.
struct Entry {
    ordinal: Ordinal,
    commands: usize,
    payload: Payload,
}

/// What became of a proposed entry.
enum Ended {
    /// It is applied; or the term is over, or Raft stops: the origins see the change of leadership and give
    /// up.
    Over,
    /// Nothing of it is applied, nor will be: Raft has not taken it, or has taken it in front of one before
    /// it.
    Undone(Entry),
}

/// Entries that were proposed and have not come back.
#[derive(Default)]
struct InFlight {
    entries: FuturesUnordered<BoxFuture<'static, (usize, Ended)>>,
    /// In all of them.
    commands: usize,
}

impl InFlight {
    fn add(&mut self, commands: usize, ended: impl Future<Output = Ended> + Send + 'static) {
        self.commands += commands;
        self.entries.push(ended.map(move |ended| (commands, ended)).boxed());
    }

    /// The next one that comes back; `None`: there is none. Cancel safe.
    async fn next(&mut self) -> Option<Ended> {
        let (commands, ended) = self.entries.next().await?;
        assert!(self.commands >= commands, "an entry that comes back was counted");
        self.commands -= commands;
        assert!(!self.entries.is_empty() || self.commands == 0, "without entries no command is in flight");
        Some(ended)
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Batcher {
    pub async fn run(mut self, shutdown: Shutdown) {
        let (mut in_flight, mut undone) = (InFlight::default(), BTreeMap::new());
        let (mut builder, mut proposed) = (EntryBuilder::default(), time::now());
        let (mut made, mut begun) = (Ordinal::default(), time::now());
        loop {
            let under_way = in_flight.entries.len() + undone.len();
            assert!(under_way <= BATCHES_IN_FLIGHT_MAX, "no more entries are made than may be in flight");
            if in_flight.is_empty() && !undone.is_empty() {
                self.propose_again(std::mem::take(&mut undone), &mut in_flight, &shutdown).await;
            }
            while !builder.is_full()
                && let Ok(batch) = self.queue.try_recv()
            {
                begun = if builder.is_empty() { time::now() } else { begun };
                builder.add(batch);
            }
            let has_room = in_flight.entries.len() < BATCHES_IN_FLIGHT_MAX && undone.is_empty();
            let may_go_at = if builder.is_full() {
                proposed
            } else if in_flight.commands >= FEW_COMMANDS {
                proposed + IN_FLIGHT_DELAY_MAX
            } else if self.may_coalesce(builder.commands()) {
                begun + COALESCE_DELAY_MAX
            } else {
                proposed
            };
            if has_room
                && !builder.is_empty()
                && may_go_at <= time::now()
                && let Some((term, mut proposals)) = builder.take()
            {
                if self.may_propose(term, &shutdown).await {
                    self.refuse_growth(term, &mut proposals);
                    let proposals = self.judge(term, proposals, &mut builder);
                    (made, proposed) = (self.next_ordinal(made, term), time::now());
                    let commands = proposals.len();
                    let entry = Entry { ordinal: made, commands, payload: self.stamp(made, proposals) };
                    self.propose(entry, &mut in_flight).await;
                }
                continue;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                Some(ended) = in_flight.next(), if !in_flight.is_empty() => match ended {
                    Ended::Over => {}
                    Ended::Undone(entry) => {
                        let twin = undone.insert(entry.ordinal, entry);
                        assert!(twin.is_none(), "two entries have one number");
                    }
                },
                batch = self.queue.recv(), if !builder.is_full() => match batch {
                    Some(batch) => {
                        begun = if builder.is_empty() { time::now() } else { begun };
                        builder.add(batch);
                    }
                    None => return,
                },
                () = time::sleep_until(may_go_at), if has_room && !builder.is_empty() => {}
            }
        }
    }

    /// Whether these commands are few and lose nothing by waiting for others.
    fn may_coalesce(&self, commands: &[Proposal]) -> bool {
        commands.len() < FEW_COMMANDS && coalesce::all_only_join_queues(commands, &self.replica.state.read())
    }

    /// The number of the next entry, behind the `last` one that was made here.
    ///
    /// Invariant: called when this node may propose. So all entries of the term from a former life of this
    /// task are applied.
    fn next_ordinal(&self, last: Ordinal, term: u64) -> Ordinal {
        let last = if last.term == term { last } else { self.replica.state.read().last_entry() };
        let next = last.next_in(term);
        assert_eq!(next.term, term, "an entry is numbered in the term that it is proposed in");
        assert!(last.term < term || last.number < next.number, "the numbers of a term rise");
        next
    }

    /// What goes with this entry; the rest is put back.
    fn judge(&self, term: u64, proposals: Vec<Proposal>, builder: &mut EntryBuilder) -> Vec<Proposal> {
        let waiting = proposals.len();
        let Judged { entry, rest, refused } = judge::judged(proposals, &self.replica.state.read());
        assert_eq!(entry.len() + rest.len(), waiting, "no command is lost between two entries");
        assert!(!entry.is_empty() || waiting == 0, "the first command always goes with the entry");
        assert!(refused <= entry.len() as u64, "a refusal stands in the entry");
        self.metrics.commands_refused_total.add(refused);
        if refused > 0 {
            tracing::debug!(refused, "commands are too dear for the log");
        }
        if !rest.is_empty() {
            self.metrics.batches_cut_total.inc();
            builder.put_back(TermBatch { term, proposals: rest });
        }
        entry
    }

    /// Above the memory limit of this node nothing that grows gets into the log, nor while no majority of the
    /// voters has room on its disks.
    fn refuse_growth(&self, term: u64, proposals: &mut [Proposal]) {
        let has_memory = !self.replica.memory.is_full();
        let has_room = self.replica.room.suffices(term, self.me, || facts::voter_sets(&self.raft));
        if has_memory && has_room {
            return;
        }
        let refused = growth::refuse(proposals, &self.replica.state.read());
        assert!(refused <= proposals.len() as u64, "a command is refused once");
        if has_memory {
            self.metrics.growth_refused_for_room_total.add(refused);
            rare::taken(Rare::GrowthRefusedForRoom);
        } else {
            self.metrics.growth_refused_total.add(refused);
        }
    }

    fn stamp(&self, ordinal: Ordinal, proposals: Vec<Proposal>) -> Payload {
        self.metrics.batches_total.inc();
        let compares = |proposal: &Proposal| {
            matches!(proposal.command, Command::CompareDigests | Command::DigestAt { .. })
        };
        if proposals.iter().all(compares) {
            self.metrics.comparison_batches_total.inc();
        }
        self.metrics.batch_commands.record(proposals.len());
        let (time_ms, enforce_quota) = (self.clock.now_ms(), self.enforce_quota);
        let batch = Batch { time_ms, enforce_quota, ordinal, proposals };
        let bytes = batch.encode_as(self.replica.version());
        debug_assert_eq!(Batch::decode(&bytes).ok().as_ref(), Some(&batch), "it is read as it was written");
        busy::spend(Work::Command, batch.proposals.len() as u64);
        busy::spend(Work::LogByte, bytes.len() as u64);
        self.replica.batch_cache.keep(bytes.clone(), batch);
        Payload(bytes)
    }

    /// A leader whose quorum was silent for a moment refuses entries until it hears of it again, and one that
    /// hands leadership over until that is done or has failed. The term may go on, so no other task learns of
    /// it: they are proposed again, to the end of the term. Those behind them that were taken meanwhile are
    /// skipped by every node, and come again, too.
    ///
    /// Invariant: in their order, with their numbers, and before any other.
    async fn propose_again(
        &mut self,
        undone: BTreeMap<Ordinal, Entry>,
        in_flight: &mut InFlight,
        shutdown: &Shutdown,
    ) {
        tokio::select! {
            biased;
            () = shutdown.wait() => return,
            () = time::sleep(REFUSED_PAUSE) => {}
        }
        assert!(in_flight.is_empty(), "no entry overtakes those that are proposed again");
        assert!(undone.keys().is_sorted(), "they are proposed in their order");
        for entry in undone.into_values() {
            if !self.may_propose(entry.ordinal.term, shutdown).await {
                return;
            }
            rare::taken(Rare::EntryProposedAgain);
            self.propose(entry, in_flight).await;
        }
    }

    /// Waits until this node is ready to propose in `term`; false if that term is over or not ours.
    async fn may_propose(&mut self, term: u64, shutdown: &Shutdown) -> bool {
        loop {
            let view = *self.leadership.borrow_and_update();
            if view.term != term || view.leader != Some(self.me) {
                return false;
            }
            if view.ready {
                return true;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return false,
                changed = self.leadership.changed() => if changed.is_err() { return false },
            }
        }
    }

    /// Hands one entry to Raft.
    async fn propose(&self, entry: Entry, in_flight: &mut InFlight) {
        assert!(
            in_flight.entries.len() < BATCHES_IN_FLIGHT_MAX,
            "an entry is proposed only where there is room"
        );
        let Ok(leader) = self.raft.as_leader() else { return };
        if leader.leader_id().term != entry.ordinal.term {
            return;
        }
        if world::mishap(REFUSED_ONE_IN) {
            in_flight.add(entry.commands, async move {
                time::sleep(REFUSED_LATE).await;
                Ended::Undone(entry)
            });
            return;
        }
        let (metrics, started) = (self.metrics.clone(), Instant::now());
        let (responder, answer) =
            ProgressResponder::<TypeConfig, ClientWriteResult<TypeConfig>>::complete_only();
        let payload = Payload(entry.payload.0.clone());
        let write =
            self.raft.write(payload).with_leader(leader.to_committed_leader_id()).responder(responder);
        if let Err(fatal) = write.await {
            tracing::error!(error = %fatal, "Raft has stopped; this node must be restarted");
            return;
        }
        in_flight.add(entry.commands, async move {
            match answer.await {
                Ok(Ok(done)) if done.data == EntryOutcome::Skipped => Ended::Undone(entry),
                Ok(Ok(_)) => {
                    metrics.commit_seconds.record(started.elapsed());
                    Ended::Over
                }
                // Its documentation: rejected before the entry was appended.
                Ok(Err(ClientWriteError::ForwardToLeader(e))) => {
                    tracing::debug!(error = %e, reason = ?e.reason, "an entry was refused");
                    rare::taken(Rare::EntryRefused);
                    Ended::Undone(entry)
                }
                Ok(Err(e)) => {
                    rare::taken(Rare::EntryGivenUp);
                    tracing::debug!(error = %e, "an entry was given up");
                    Ended::Over
                }
                Err(_) => {
                    tracing::debug!("Raft dropped an entry while stopping");
                    Ended::Over
                }
            }
        });
    }
}

/// About how many bytes a proposal takes in the log.
pub fn weight(proposal: &Proposal) -> usize {
    weight_of(&proposal.command, &proposal.identities)
}

/// The same of a command and those on whose behalf it is.
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
    let payload = match command.untagged() {
        Command::Create { create, .. } => of_create(create),
        Command::SetData(set) => set.path.len() + set.data.as_ref().map_or(0, |d| d.len()),
        Command::Delete { path, .. } | Command::Reap { path } => path.len(),
        Command::Multi(ops) => ops
            .iter()
            .map(|op| {
                OVERHEAD
                    + match op {
                        Op::Create(c) | Op::Create2(c) | Op::CreateContainer(c) | Op::CreateTtl(c, _) => {
                            of_create(c)
                        }
                        Op::SetData(set) => set.path.len() + set.data.as_ref().map_or(0, |d| d.len()),
                        Op::Delete { path, .. } | Op::Check { path, .. } => path.len(),
                    }
            })
            .sum(),
        Command::SetAcl(set) => set.path.len() + of_acl(set.acl.as_deref()),
        Command::Acquire(all) => all
            .iter()
            .map(|a| {
                let data = a.data.as_ref().map_or(0, |d| d.len());
                OVERHEAD + a.lock.len() + a.prefix.len() + data + of_acl(a.acl.as_deref())
            })
            .sum(),
        Command::Release(claims) | Command::Verify(claims) => of_claims(claims),
        Command::ForceRelease(claim) => claim.path.len(),
        Command::Convert { claim, prefix, .. } => claim.path.len() + prefix.len(),
        Command::Abandon(all) => all.iter().map(|a| OVERHEAD + a.lock.len() + a.prefix.len()).sum(),
        Command::LockDue { lock } => lock.len(),
        Command::Ask(ask) => ask.lock.len() + ask.reason.len() + ask.by.len(),
        Command::Configure { config } => config.len(),
        Command::Noop
        | Command::Tagged { .. }
        | Command::OpenSession { .. }
        | Command::Reattach { .. }
        | Command::CompareDigests
        | Command::DigestAt { .. }
        | Command::Refused(_)
        | Command::CloseSession
        | Command::Found { .. }
        | Command::EndGrace
        | Command::RaiseVersion { .. }
        | Command::HoldVersion { .. }
        | Command::ExpireSession { .. } => 0,
    };
    OVERHEAD + identities.iter().map(of_id).sum::<usize>() + payload
}
