//! What time does to locks, on the leader: proposes `LockDue` when a lock-delay is over or something has been
//! held for longer than it had asked for. Applying the command looks again, so one too many does nothing.
//!
//! In the flow: apply says when an earlier moment has come into the state ([`LockAlarm`]); the task sleeps
//! until then. With nothing due it sleeps without end, and so does the task of a node that does not lead.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::Machine;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_types::limits::{BATCH_MAX_COMMANDS, LOCK_SWEEP_MAX};
use tokio::sync::mpsc;

use crate::replica::Replica;

/// What was proposed and is still due after so long is proposed again. Also the longest that something is
/// late that becomes due meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Wakes the sweep when something is due earlier than it knows. Rung by apply, so it never waits.
pub struct LockAlarm(watch::Sender<Option<i64>>);

impl LockAlarm {
    /// The alarm, and what the sweep hears of it.
    pub fn new() -> (LockAlarm, watch::Receiver<Option<i64>>) {
        let (sender, receiver) = watch::channel(None);
        (LockAlarm(sender), receiver)
    }

    /// The state has changed.
    pub fn look(&self, machine: &Machine) {
        let next = machine.next_lock_due();
        self.0.send_if_modified(|known| {
            let is_earlier = next.is_some_and(|next| known.is_none_or(|known| next < known));
            *known = next;
            is_earlier
        });
    }
}

/// What the task needs.
pub struct LockSweep {
    /// This node.
    pub me: NodeId,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Where the locks are.
    pub replica: Arc<Replica>,
    /// Where the commands go.
    pub batcher: mpsc::Sender<TermBatch>,
    /// By which it is due. Nobody but this node raises it while this node leads, so a sleep is as long as it
    /// says.
    pub clock: Arc<LogClock>,
    /// Of this replica's [`LockAlarm`].
    pub alarm: watch::Receiver<Option<i64>>,
}

impl LockSweep {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            let view = *self.leadership.borrow_and_update();
            let leads = view.ready && view.leader == Some(self.me);
            // Marked as heard before the state is looked at: what comes in between rings again.
            let _ = self.alarm.borrow_and_update();
            let next_look = if leads { self.sweep(view.term).await } else { None };
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                rung = self.alarm.changed(), if leads => if rung.is_err() { return },
                () = time::sleep(next_look.unwrap_or_default()), if next_look.is_some() => {}
            }
        }
    }

    /// Proposes what is due. Gives how long until the next look, if there will be anything to see.
    async fn sweep(&self, term: u64) -> Option<Duration> {
        let due = match look(&self.replica.state.read(), self.clock.now_ms()) {
            Found::Nothing => return None,
            Found::Later(sleep) => return Some(sleep),
            Found::Due(due) => due,
        };
        for some in due.chunks(BATCH_MAX_COMMANDS) {
            let proposals = some.iter().map(|lock| lock_due(lock.clone())).collect();
            // The folder empties its queue even when the term is over.
            if self.batcher.send(TermBatch { term, proposals }).await.is_err() {
                return None;
            }
        }
        Some(LOOK_AGAIN)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Neither now nor later.
    Nothing,
    /// Look again after so long.
    Later(Duration),
    /// These locks, each once.
    Due(Vec<String>),
}

fn look(machine: &Machine, now_ms: i64) -> Found {
    let Some(next_ms) = machine.next_lock_due() else { return Found::Nothing };
    if next_ms > now_ms {
        return Found::Later(Duration::from_millis(next_ms.abs_diff(now_ms)));
    }
    let mut due: Vec<String> = machine.locks_due(now_ms).take(LOCK_SWEEP_MAX).map(str::to_owned).collect();
    due.sort_unstable();
    due.dedup();
    Found::Due(due)
}

fn lock_due(lock: String) -> Proposal {
    Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment::default(),
        identities: Default::default(),
        command: Command::LockDue { lock },
    }
}

#[cfg(test)]
mod tests;
