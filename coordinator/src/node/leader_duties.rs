//! Proposals of the leader without a client's request: one duty of the node calls each [`LeaderDuty`] in
//! turn.
//!
//! A duty decides from the applied state and never waits, so no duty delays another. Work with waits for
//! other nodes or for a disk (`autopilot/`, `backups.rs`) and the expiry of sessions run in tasks of their
//! own.

mod cluster;
mod founding;
mod zk_config;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::limits::BATCH_MAX_COMMANDS;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_state::command::Command;
use tokio::sync::mpsc;

use crate::node::proposer::of_the_cluster;
pub use cluster::ClusterDuty;

/// Source of the leader's own proposals.
pub trait LeaderDuty: Send {
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
    me: NodeId,
    /// All duties are called at once when this node begins to lead.
    leadership: watch::Receiver<Leadership>,
    /// Queue of the intake.
    proposals: mpsc::Sender<TermBatch>,
    /// Signaled by apply when a lock may become due earlier.
    alarm: watch::Receiver<Option<i64>>,
    /// Duties in the order of the calls, with their next calls.
    duties: Vec<(Box<dyn LeaderDuty>, Option<Instant>)>,
    view: Leadership,
    is_rung: bool,
}

impl LeaderDuties {
    /// Creates the leader's duties of node `me`, which calls `duties` in their order.
    pub fn new(
        me: NodeId,
        leadership: watch::Receiver<Leadership>,
        proposals: mpsc::Sender<TermBatch>,
        alarm: watch::Receiver<Option<i64>>,
        duties: Vec<Box<dyn LeaderDuty>>,
    ) -> LeaderDuties {
        let duties = duties.into_iter().map(|duty| (duty, None)).collect();
        LeaderDuties { me, leadership, proposals, alarm, duties, view: Leadership::default(), is_rung: false }
    }
}

impl Duty for LeaderDuties {
    /// A closed channel: the node stops.
    type End = ();

    async fn turn(&mut self) -> Result<Option<Instant>, ()> {
        let (now, seen) = (time::now(), *self.leadership.borrow_and_update());
        let leads = seen.is_led_by(self.me);
        if decides!("duties-see-new-leader", seen != self.view) {
            self.view = seen;
            self.duties.iter_mut().for_each(|(_, next)| *next = leads.then_some(now));
        }
        // Marks the alarm as seen before reading the state: a later change signals again.
        let was_rung = std::mem::take(&mut self.is_rung);
        let is_rung = leads && (was_rung || self.alarm.has_changed());
        let _ = self.alarm.borrow_and_update();
        for (duty, next) in &mut self.duties {
            if decides!(
                "duty-is-not-due",
                next.is_none_or(|at| at > now) && !(is_rung && duty.wakes_on_alarm())
            ) {
                continue;
            }
            let due = duty.due(self.view.term, now);
            *next = due.next;
            // Waits for space in the queue; the intake empties the queue even after the end of the term.
            propose(&self.proposals, self.view.term, due.commands).await.map_err(|_| ())?;
        }
        Ok(self.duties.iter().filter_map(|(_, next)| *next).min())
    }

    async fn event(&mut self) -> Result<(), ()> {
        let leads = self.view.is_led_by(self.me);
        tokio::select! {
            biased;
            changed = self.leadership.changed() => changed.map_err(|_| ()),
            rung = self.alarm.changed(), if leads => {
                self.is_rung = rung.is_ok();
                rung.map_err(|_| ())
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
