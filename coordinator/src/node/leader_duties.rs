//! Proposals of the leader without a client's request: one task calls each [`Duty`] in turn.
//!
//! A duty decides from the applied state and never waits, so no duty delays another. Work with waits for
//! other nodes or for a disk (`autopilot/`, `backups.rs`) and the expiry of sessions run in tasks of their
//! own.

mod cluster;
mod founding;
mod zk_config;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::choice::{self, Choice};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_state::command::Command;
use rowlock_types::limits::BATCH_MAX_COMMANDS;
use tokio::sync::mpsc;

use crate::node::proposer::of_the_cluster;
pub use cluster::{ClusterDuty, RaisedVersion};

/// Source of the leader's own proposals.
pub trait Duty: Send {
    /// Returns the commands for the leader of `term` to propose at `now`. A proposal can get lost, so a later
    /// call returns all commands still due.
    fn due(&mut self, term: u64, now: Instant) -> Due;

    /// Returns whether a signal of the [`LockAlarm`](crate::node::lock_sweep::LockAlarm) triggers a call.
    fn wakes_on_alarm(&self) -> bool {
        false
    }
}

/// Commands of a duty, and the time of the next call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Proposed in this order.
    pub commands: Vec<Command>,
    /// Time of the next call. `None`: at a change of the leadership or an alarm.
    pub next: Option<Instant>,
}

pub struct LeaderDuties {
    pub me: NodeId,
    /// All duties are called at once when this node begins to lead.
    pub leadership: watch::Receiver<Leadership>,
    /// Queue of the intake.
    pub proposals: mpsc::Sender<TermBatch>,
    /// Signaled by apply when a lock may become due earlier.
    pub alarm: watch::Receiver<Option<i64>>,
    /// Called in this order.
    pub duties: Vec<Box<dyn Duty>>,
}

impl LeaderDuties {
    pub async fn run(mut self) {
        let mut view = Leadership::default();
        let mut next_calls = vec![None; self.duties.len()];
        let mut is_rung = false;
        loop {
            let (now, seen) = (time::now(), *self.leadership.borrow_and_update());
            let leads = seen.is_led_by(self.me);
            if seen != view {
                view = seen;
                next_calls.fill(leads.then_some(now));
            }
            // Marks the alarm as seen before reading the state: a later change signals again.
            is_rung = leads && (is_rung || self.alarm.has_changed());
            let _ = self.alarm.borrow_and_update();
            for (duty, next) in self.duties.iter_mut().zip(&mut next_calls) {
                if next.is_none_or(|at| at > now) && !(is_rung && duty.wakes_on_alarm()) {
                    continue;
                }
                let due = duty.due(view.term, now);
                *next = due.next;
                // Waits for space in the queue; the intake empties the queue even after the end of the term.
                if propose(&self.proposals, view.term, due.commands).await.is_err() {
                    return;
                }
            }
            is_rung = false;
            let next = next_calls.iter().flatten().min().copied();
            tokio::select! {
                biased;
                changed = self.leadership.changed() => if changed.is_err() { return },
                rung = self.alarm.changed(), if leads => match rung {
                    Ok(()) => is_rung = true,
                    Err(_) => return,
                },
                () = time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }
}

async fn propose(
    queue: &mpsc::Sender<TermBatch>,
    term: u64,
    commands: Vec<Command>,
) -> Result<(), mpsc::error::SendError<TermBatch>> {
    if !commands.is_empty() && choice::taken(Choice::DutyLost, 5) {
        return Ok(());
    }
    let mut proposals = commands.into_iter().map(of_the_cluster).peekable();
    while proposals.peek().is_some() {
        let proposals = proposals.by_ref().take(BATCH_MAX_COMMANDS).collect();
        queue.send(TermBatch { term, proposals }).await?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
