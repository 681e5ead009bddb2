//! The leader's sweep: proposes the removal of containers that have lost their last child and of TTL znodes
//! whose time is over, and warns of quotas that are exceeded. Applying the command looks again, so a znode
//! that has got a child meanwhile stays.
//!
//! Must never hold the state's lock while it looks: there may be millions of znodes to look at.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::{time, worker};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::Machine;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::quota::Quota;
use rowlock_types::limits::{BATCH_MAX_COMMANDS, SWEEP_MAX_QUOTA_WARNINGS, SWEEP_MAX_ZNODES};
use tokio::sync::mpsc;

use crate::replica::Replica;

/// What the task needs.
pub struct Sweep {
    /// This node.
    pub me: NodeId,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Where the znodes are.
    pub replica: Arc<Replica>,
    /// Where the commands go.
    pub batcher: mpsc::Sender<TermBatch>,
    /// By which time is over.
    pub clock: Arc<LogClock>,
    /// Pause between two sweeps; ZooKeeper's `znode.container.checkIntervalMs`.
    pub every: Duration,
}

/// What a sweep has found.
#[derive(Default)]
struct Found {
    /// Paths of znodes to be removed.
    due: Vec<String>,
    /// The first of the exceeded quotas.
    exceeded: Vec<Quota>,
    /// All of them.
    exceeded_count: usize,
}

impl Sweep {
    /// Runs until `shutdown`.
    pub async fn run(self, shutdown: Shutdown) {
        let mut leadership = self.leadership.clone();
        let mut swept_term = None;
        let mut next = time::now() + self.every;
        loop {
            let view = *leadership.borrow_and_update();
            let leads = view.ready && view.leader == Some(self.me);
            let is_time = time::now() >= next;
            // A new leader sweeps at once, so that a change of leaders never makes a pause longer.
            if leads && (is_time || swept_term != Some(view.term)) {
                self.sweep(view.term).await;
                swept_term = Some(view.term);
            }
            if is_time {
                next = time::now() + self.every;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = leadership.changed() => if changed.is_err() { return },
                () = time::sleep_until(next) => {}
            }
        }
    }

    async fn sweep(&self, term: u64) {
        let found = self.look().await;
        if !found.due.is_empty() {
            tracing::debug!(znodes = found.due.len(), "removing containers and TTL znodes");
        }
        warn(&found);
        for some in found.due.chunks(BATCH_MAX_COMMANDS) {
            let proposals = some.iter().map(|path| removal(path.clone())).collect();
            // Waiting here is the sweep's pace; the folder empties its queue even when the term is over.
            if self.batcher.send(TermBatch { term, proposals }).await.is_err() {
                return;
            }
        }
    }

    async fn look(&self) -> Found {
        let frozen = {
            let machine = self.replica.state.read();
            if machine.containers_and_ttl().next().is_none() && !machine.may_have_quotas() {
                return Found::default();
            }
            machine.freeze()
        };
        let now_ms = self.clock.now_ms();
        worker::run_blocking("sweep", move || look_at(frozen.machine(), now_ms)).await
    }
}

fn look_at(machine: &Machine, now_ms: i64) -> Found {
    let due = machine.reap_due(now_ms).take(SWEEP_MAX_ZNODES).map(str::to_owned).collect();
    let mut found = Found { due, ..Found::default() };
    for quota in machine.quotas().filter(Quota::is_exceeded) {
        found.exceeded_count += 1;
        if found.exceeded.len() < SWEEP_MAX_QUOTA_WARNINGS {
            found.exceeded.push(quota);
        }
    }
    found
}

fn warn(found: &Found) {
    for Quota { path, limits, usage } in &found.exceeded {
        tracing::warn!(%path, ?usage, ?limits, "a quota is exceeded: delete znodes there, or raise it with setquota");
    }
    if found.exceeded_count > found.exceeded.len() {
        tracing::warn!(quotas = found.exceeded_count, "more quotas are exceeded; listquota shows each");
    }
}

fn removal(path: String) -> Proposal {
    Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment::default(),
        identities: Default::default(),
        command: Command::Reap { path },
    }
}

#[cfg(test)]
mod tests;
