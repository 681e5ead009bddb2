//! Proposals of the leader without a client's request: one duty of the node calls each [`LeaderDuty`] in
//! turn.
//!
//! A duty decides from the applied state and never waits, so no duty delays another. Work with waits for
//! other nodes or for a disk (`autopilot/`, `backups.rs`) and the expiry of sessions run in tasks of their
//! own. The duty of the heart itself is [`ClusterDuty`].

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::limits::BATCH_MAX_COMMANDS;
use rowlock_consensus::raft::elections::Leadership;
use rowlock_consensus::raft::facts;
use rowlock_consensus::reconfiguration::Members;
use rowlock_env::choice::{self, Choice};
use rowlock_env::duty::Duty;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_env::{decides, rng};
use rowlock_proto::{ClusterId, NodeId, Zxid};
use rowlock_state::Machine;
use rowlock_state::command::Command;
use tokio::sync::mpsc;

use crate::node::context::NodeContext;
use crate::node::proposer::of_the_cluster;

/// Source of the leader's own proposals.
pub trait LeaderDuty: Send {
    /// Returns the commands for the leader of `term` to propose at `now`. A proposal can get lost, so a later
    /// call returns all commands still due.
    fn due(&mut self, term: u64, now: Instant) -> Due;

    /// Returns whether a signal of the [`LockAlarm`](crate::node::sweep::LockAlarm) triggers a call.
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

/// Znode with the text of the membership.
const CONFIG: &str = "/zookeeper/config";

/// Proposes the few commands that concern the whole cluster.
pub struct ClusterDuty {
    node: Arc<NodeContext>,
    founding: Founding,
    /// Membership whose text [`CONFIG`] had, and the zxid of that text.
    written: Option<(u64, Zxid)>,
}

impl ClusterDuty {
    pub fn new(node: Arc<NodeContext>) -> ClusterDuty {
        ClusterDuty { node, founding: Founding::default(), written: None }
    }
}

impl LeaderDuty for ClusterDuty {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        // During a change of voters the text stays as written until the new set is in force.
        let settled_at = facts::settled_at(&self.node.raft);
        let state = self.node.replica.state.read();
        let text_at = state.get_data(CONFIG, &[]).ok().map(|(_, stat)| stat.mzxid);
        let now_there = settled_at.zip(text_at);
        let mut config = None;
        if (now_there.is_none() || now_there != self.written)
            && let Some((members, version)) = facts::settled_members(&self.node.raft)
        {
            config = config_due(&state, &members, version);
            self.written = text_at.filter(|_| config.is_none()).map(|at| (version, at));
        }
        let mut founding = self.founding.due(&state, term, now);
        if mutant::is(Mutant::GraceNotRepeated)
            && state.grace_ms() > 0
            && !self.node.recollection.is_restart(term)
        {
            founding = Some(Command::EndGrace);
        }
        Due { commands: founding.into_iter().chain(config).collect(), next: Some(time::next_beat()) }
    }
}

/// Proposes the cluster's id, and the end of the grace period of a restored cluster. Reads no clock.
///
/// Invariant: one leader measures the whole grace with a monotonic clock, from the beginning of its own term.
/// A later leader begins again, because it did not see the time before.
#[derive(Default)]
struct Founding {
    /// Term and time at which the wait began.
    waiting: Option<(u64, Instant)>,
}

impl Founding {
    /// Returns the command that the leader of this term must propose now.
    fn due(&mut self, state: &Machine, term: u64, now: Instant) -> Option<Command> {
        if state.cluster().is_none() {
            let id = u128::from(rng::u64()) << 64 | u128::from(rng::u64());
            return Some(Command::Found { cluster: ClusterId(id) });
        }
        if state.grace_ms() == 0 {
            self.waiting = None;
            return None;
        }
        let grace = Duration::from_millis(u64::from(state.grace_ms()));
        let since = match self.waiting {
            Some((of, since)) if of == term => since,
            _ => {
                tracing::info!(
                    grace_seconds = grace.as_secs(),
                    "grace begins: this leader opens sessions when it is over"
                );
                self.waiting = Some((term, now));
                now
            }
        };
        (now.saturating_since(since) >= grace).then_some(Command::EndGrace)
    }
}

/// Returns the command that writes the membership to `/zookeeper/config`, if the text differs.
fn config_due(state: &Machine, members: &Members, version: u64) -> Option<Command> {
    let config = config_text(members, version);
    let current = state.get_data(CONFIG, &[]);
    let is_current = matches!(current, Ok((Some(data), _)) if data == config.as_bytes());
    (!is_current).then_some(Command::Configure { config })
}

/// Formats the membership as ZooKeeper's dynamic configuration: a line per server, then the version (here the
/// log index of the membership).
fn config_text(members: &Members, version: u64) -> String {
    let mut out = String::new();
    for (id, member) in &members.nodes {
        let role = if members.voters.contains(id) { "participant" } else { "observer" };
        // Curator parses the line as ZooKeeper's server does, and uses the part after the `;`.
        let _ = writeln!(out, "server.{id}={}:{role};{}", member.zookeeper_addr(), member.client_addr);
    }
    let _ = write!(out, "version={version:x}");
    out
}

#[cfg(test)]
pub(crate) mod tests;
