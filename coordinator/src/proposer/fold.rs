//! The leader's side: folds what is waiting into one log entry, and keeps a few entries in flight.
//!
//! This one decision is worth more than any other for throughput (docs/benchmarks.md): under load a flush and a round
//! trip are shared by hundreds of commands, and an idle leader waits for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{Acl, Id, NodeId};
use rowlock_state::command::{Batch, Command, Proposal};
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS, BATCHES_IN_FLIGHT_MAX};
use crate::log_clock::LogClock;
use crate::metrics::Metrics;
use crate::raft::Raft;
use crate::raft::leadership::Leadership;
use crate::raft::types::{Payload, TypeConfig};

/// Before an entry that Raft has refused is proposed again.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// Proposals for the leader of `term`; dropped if that term is over (their origins have given them up by then).
#[derive(Debug)]
pub struct Parcel {
    /// The term in which they were accepted.
    pub term: u64,
    /// In their sender's order.
    pub proposals: Vec<Proposal>,
}

/// The task that folds. Ends with the shutdown or with Raft.
pub struct Folder {
    /// This node.
    pub me: NodeId,
    /// Where entries go.
    pub raft: Raft,
    /// Whether this node may propose.
    pub leadership: watch::Receiver<Leadership>,
    /// From the router, from other nodes, from session expiry.
    pub queue: mpsc::Receiver<Parcel>,
    /// Whether the batches of this leader enforce hard quotas.
    pub enforce_quota: bool,
    /// Stamps the batches.
    pub clock: Arc<LogClock>,
    /// Batch sizes and commit latency.
    pub metrics: Arc<Metrics>,
}

/// A log entry, made and to be proposed.
struct Entry {
    /// Counts the entries of this task, from 1.
    number: u64,
    term: u64,
    payload: Payload,
}

/// What became of a proposed entry.
enum Ended {
    /// It is applied.
    Applied { number: u64 },
    /// It is certainly not in the log.
    Refused(Entry),
    /// The term is over, or Raft stops: the origins see the change of leadership and give up.
    GivenUp,
}

type InFlight = FuturesUnordered<BoxFuture<'static, Ended>>;

impl Folder {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut in_flight = InFlight::new();
        let mut refused = BTreeMap::new();
        // The parcel that did not fit into the last batch.
        let mut carry: Option<Parcel> = None;
        let (mut made, mut applied) = (0, 0);
        loop {
            if in_flight.is_empty() && !refused.is_empty() {
                self.propose_again(std::mem::take(&mut refused), applied, &mut in_flight, &shutdown).await;
            }
            let has_room = in_flight.len() < BATCHES_IN_FLIGHT_MAX && refused.is_empty();
            let next = async {
                match carry.take() {
                    Some(parcel) => Some(parcel),
                    None => self.queue.recv().await,
                }
            };
            let first = tokio::select! {
                biased;
                () = shutdown.wait() => return,
                Some(ended) = in_flight.next(), if !in_flight.is_empty() => {
                    match ended {
                        Ended::Applied { number } => applied = applied.max(number),
                        Ended::Refused(entry) => drop(refused.insert(entry.number, entry)),
                        Ended::GivenUp => {}
                    }
                    continue;
                }
                parcel = next, if has_room => match parcel {
                    Some(parcel) => parcel,
                    None => return,
                },
            };
            let term = first.term;
            if !self.may_propose(term, &shutdown).await {
                continue;
            }
            let proposals = fold(first, &mut self.queue, &mut carry);
            self.metrics.batches_total.inc();
            self.metrics.batch_commands.record(proposals.len());
            let (time_ms, enforce_quota) = (self.clock.now_ms(), self.enforce_quota);
            let batch = Batch { time_ms, enforce_quota, proposals };
            made += 1;
            let entry = Entry { number: made, term, payload: Payload(batch.encode()) };
            in_flight.extend(self.propose(entry).await);
        }
    }

    /// A leader whose quorum was silent for a moment refuses entries until it hears of it again, and one that hands
    /// leadership over until that is done or has failed. The term may go on, so nobody else learns of it: they are
    /// proposed again, to the end of the term.
    ///
    /// Invariant: in their order and before any other. `applied` is the last entry that is in the log.
    async fn propose_again(
        &mut self,
        refused: BTreeMap<u64, Entry>,
        applied: u64,
        in_flight: &mut InFlight,
        shutdown: &Shutdown,
    ) {
        if refused.first_key_value().is_some_and(|(number, _)| *number < applied) {
            tracing::warn!(
                "Raft refused an entry and took a later one: ending the term, so that clients look again"
            );
            if let Err(fatal) = self.raft.trigger().elect(false).await {
                tracing::error!(error = %fatal, "Raft has stopped; this node must be restarted");
            }
            return;
        }
        tokio::select! {
            biased;
            () = shutdown.wait() => return,
            () = time::sleep(REFUSED_PAUSE) => {}
        }
        for entry in refused.into_values() {
            if !self.may_propose(entry.term, shutdown).await {
                return;
            }
            in_flight.extend(self.propose(entry).await);
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

    /// Hands one entry to Raft. The future that comes back ends when the entry is applied, refused or given up.
    async fn propose(&self, entry: Entry) -> Option<BoxFuture<'static, Ended>> {
        let leader = self.raft.as_leader().ok()?;
        if leader.leader_id().term != entry.term {
            return None;
        }
        let (metrics, started) = (self.metrics.clone(), Instant::now());
        let (responder, answer) =
            ProgressResponder::<TypeConfig, ClientWriteResult<TypeConfig>>::complete_only();
        let payload = Payload(entry.payload.0.clone());
        let write =
            self.raft.write(payload).with_leader(leader.to_committed_leader_id()).responder(responder);
        if let Err(fatal) = write.await {
            tracing::error!(error = %fatal, "Raft has stopped; this node must be restarted");
            return None;
        }
        let ended = async move {
            match answer.await {
                Ok(Ok(_)) => {
                    metrics.commit_seconds.record(started.elapsed());
                    Ended::Applied { number: entry.number }
                }
                // Its documentation: rejected before the entry was appended.
                Ok(Err(ClientWriteError::ForwardToLeader(e))) => {
                    tracing::debug!(error = %e, reason = ?e.reason, "an entry was refused");
                    Ended::Refused(entry)
                }
                Ok(Err(e)) => {
                    tracing::debug!(error = %e, "an entry was given up");
                    Ended::GivenUp
                }
                Err(_) => {
                    tracing::debug!("Raft dropped an entry while stopping");
                    Ended::GivenUp
                }
            }
        };
        Some(ended.boxed())
    }
}

/// Adds to `first` what is waiting for the same term, within the limits. Parcels stay whole.
fn fold(first: Parcel, queue: &mut mpsc::Receiver<Parcel>, carry: &mut Option<Parcel>) -> Vec<Proposal> {
    let term = first.term;
    let mut proposals = first.proposals;
    let mut bytes: usize = proposals.iter().map(weight).sum();
    while proposals.len() < BATCH_MAX_COMMANDS && bytes < BATCH_MAX_BYTES {
        let Ok(parcel) = queue.try_recv() else { break };
        let more: usize = parcel.proposals.iter().map(weight).sum();
        let fits =
            proposals.len() + parcel.proposals.len() <= BATCH_MAX_COMMANDS && bytes + more <= BATCH_MAX_BYTES;
        if parcel.term != term || !fits {
            *carry = Some(parcel);
            break;
        }
        bytes += more;
        proposals.extend(parcel.proposals);
    }
    proposals
}

/// About how many bytes a proposal takes in the log.
pub fn weight(proposal: &Proposal) -> usize {
    use rowlock_proto::lock::Claim;
    use rowlock_proto::request::Op;
    const OVERHEAD: usize = 64;
    let of_id = |id: &Id| OVERHEAD + id.scheme.len() + id.id.len();
    let of_acl = |acl: &Option<Vec<Acl>>| acl.iter().flatten().map(|entry| of_id(&entry.id)).sum::<usize>();
    let of_create = |c: &rowlock_proto::request::Create| {
        c.path.len() + c.data.as_ref().map_or(0, |d| d.len()) + of_acl(&c.acl)
    };
    let of_claims = |claims: &[Claim]| claims.iter().map(|claim| OVERHEAD + claim.path.len()).sum::<usize>();
    let command = match &proposal.command {
        Command::Tagged { command, .. } => command,
        other => other,
    };
    let payload = match command {
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
        Command::SetAcl(set) => set.path.len() + of_acl(&set.acl),
        Command::Acquire(all) => all
            .iter()
            .map(|a| {
                let data = a.data.as_ref().map_or(0, |d| d.len());
                OVERHEAD + a.lock.len() + a.prefix.len() + data + of_acl(&a.acl)
            })
            .sum(),
        Command::Release(claims) | Command::Verify(claims) => of_claims(claims),
        Command::ForceRelease(claim) => claim.path.len(),
        Command::Convert { claim, prefix, .. } => claim.path.len() + prefix.len(),
        Command::Abandon(all) => all.iter().map(|a| OVERHEAD + a.lock.len() + a.prefix.len()).sum(),
        Command::LockDue { lock } => lock.len(),
        Command::Configure { config } => config.len(),
        Command::Noop
        | Command::Tagged { .. }
        | Command::CreateSession { .. }
        | Command::Attach { .. }
        | Command::CloseSession
        | Command::ExpireSession { .. } => 0,
    };
    OVERHEAD + proposal.identities.iter().map(of_id).sum::<usize>() + payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowlock_proto::SessionId;
    use rowlock_state::command::{Attachment, Origin};

    fn parcel(term: u64, count: usize) -> Parcel {
        let proposal = Proposal {
            origin: Origin::default(),
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Vec::new(),
            command: Command::Noop,
        };
        Parcel { term, proposals: vec![proposal; count] }
    }

    #[test]
    fn what_is_waiting_is_folded_up_to_the_limit_and_the_rest_is_carried() {
        let (tx, mut rx) = mpsc::channel(16);
        for count in [200, 200, 200] {
            tx.try_send(parcel(1, count)).expect("room");
        }
        let mut carry = None;
        let folded = fold(parcel(1, 100), &mut rx, &mut carry);
        assert_eq!(folded.len(), 500);
        assert_eq!(carry.map(|p| p.proposals.len()), Some(200));
    }

    #[test]
    fn another_term_is_never_folded_in() {
        let (tx, mut rx) = mpsc::channel(16);
        tx.try_send(parcel(2, 1)).expect("room");
        let mut carry = None;
        assert_eq!(fold(parcel(1, 1), &mut rx, &mut carry).len(), 1);
        assert_eq!(carry.map(|p| p.term), Some(2));
    }
}
