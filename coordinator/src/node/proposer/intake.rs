//! Intake of proposals: brings the writes of this node's clients into the log, in order. While another node
//! leads, the intake forwards them over a link; while this node leads, it builds log entries from them and
//! from the proposals of the other nodes and of its own tasks.
//!
//! Without a route to a leader the intake takes nothing from the queue, so connections get back-pressure.
//! When the leader changes, or the link breaks with batches in flight, the outcome of the forwarded writes is
//! unknown: the intake sends `Message::Lost` to every waiting connection, and their clients reconnect and
//! read the state. Writes that were certainly not forwarded stay queued for the next leader.
//!
//! Invariant: proposals of one connection reach the log in order, without gaps: either all queued ones
//! proceed, or all are given up. Invariant: writes beyond the size of one entry wait in the fair queue, and
//! the window bounds the writes in flight, so no connection waits long for the writes of others.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rowlock_consensus::batching::{Entries, ProposalQueue, TermBatch};
use rowlock_consensus::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};
use rowlock_consensus::raft::elections::Leadership;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::{Metrics, Stage};
use rowlock_proto::NodeId;
use rowlock_state::command::{Command, Proposal};
use tokio::sync::mpsc;

use super::Submission;
use super::fair_queue::Submissions;
use super::pending::{PendingWrites, Room};

/// Pause before the next try after a refusal or a lost connection, until the nodes' views agree again.
const RETRY: Duration = Duration::from_millis(20);
/// Pause after a refusal by a leader that is about to stop: the node waits for a new leader. No write is in
/// flight to the old one meanwhile, so no outcome becomes unknown.
const RETRY_LEAVING: Duration = Duration::from_secs(2);

pub struct Intake {
    me: NodeId,
    /// Writes of this node's clients.
    submissions: Submissions,
    /// Batches of other nodes and of this node's own tasks, for the terms in which this node leads.
    queue: mpsc::Receiver<TermBatch>,
    /// Number of batches in `queue` that precede the next writes of this node's clients.
    ahead: usize,
    leadership: watch::Receiver<Leadership>,
    view: Leadership,
    route: LeaderRoute,
    /// Proposals that are neither in an entry nor forwarded.
    line: ProposalQueue,
    pending: Arc<PendingWrites>,
    peers: PeerPool,
    metrics: Arc<Metrics>,
}

/// Route of proposals to the leader.
enum LeaderRoute {
    Nowhere {
        /// Time of the next try, if there is a leader.
        retry_at: Option<Instant>,
    },
    /// This node leads and builds the entries.
    Here,
    /// Another node leads; the link keeps all unacknowledged batches.
    There(Box<ForwardLink>),
}

impl Intake {
    /// Creates the intake of `submissions` and `queue`. No leader is known yet.
    pub fn new(
        me: NodeId,
        (submissions, queue): (mpsc::Receiver<Submission>, mpsc::Receiver<TermBatch>),
        leadership: watch::Receiver<Leadership>,
        pending: Arc<PendingWrites>,
        peers: PeerPool,
        metrics: Arc<Metrics>,
    ) -> Intake {
        let (submissions, ahead, view) = (Submissions::new(submissions), 0, Leadership::default());
        let (route, line) = (LeaderRoute::Nowhere { retry_at: None }, ProposalQueue::default());
        Intake { me, submissions, queue, ahead, leadership, view, route, line, pending, peers, metrics }
    }

    /// Takes and forwards proposals until `shutdown`.
    pub async fn run(mut self, mut entries: Entries, shutdown: Shutdown) {
        loop {
            self.turn();
            entries.begin_term(self.view.term);
            busy::end_turn_if_over().await;
            let due = match self.route {
                LeaderRoute::Nowhere { retry_at } => retry_at,
                LeaderRoute::Here if decides!("proposing-leader-is-ready", self.view.ready) => {
                    entries.due(&self.line)
                }
                LeaderRoute::Here | LeaderRoute::There(_) => None,
            };
            if due.is_some_and(|at| at <= time::now()) {
                if self.leads() {
                    entries.propose(&mut self.line).await;
                } else {
                    // A snapshot may have replaced the state meanwhile, which gave up the waiting writes.
                    self.pending.keep_awaited(&mut self.line);
                    self.route = self.open_route();
                }
                continue;
            }
            let takes = self.takes();
            let waiting = takes && !self.submissions.is_settled();
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                event = next_event(&mut self.route) => self.on_event(event),
                () = entries.moved() => {}
                () = time::sleep_until(due.unwrap_or_else(time::now)), if due.is_some() => {}
                () = self.pending.room(), if waiting => {}
                // Writes of many connections arrive together.
                has_more = self.submissions.arrival(), if takes => {
                    if !has_more {
                        return;
                    }
                    yield_to_ready().await;
                }
                batch = self.queue.recv(), if !self.leads() || takes => match batch {
                    Some(batch) => self.accept(batch),
                    None => return,
                },
            }
        }
    }

    /// Does all work that needs no waiting.
    fn turn(&mut self) {
        self.follow();
        self.fill();
        self.forward();
    }

    fn leads(&self) -> bool {
        matches!(self.route, LeaderRoute::Here)
    }

    /// Returns whether the queue of proposals takes more writes of this node's clients.
    fn takes(&self) -> bool {
        decides!(
            "intake-takes-writes",
            !matches!(self.route, LeaderRoute::Nowhere { .. }) && !self.line.is_full()
        )
    }

    /// Follows the current leadership.
    fn follow(&mut self) {
        let now = *self.leadership.borrow_and_update();
        let before = std::mem::replace(&mut self.view, now);
        if decides!("leader-has-changed", (now.term, now.leader) != (before.term, before.leader)) {
            self.leader_changed();
            self.route = self.open_route();
        }
    }

    /// Gives up the writes that the previous leader may have received: their outcome is unknown. If all
    /// waiting writes are still queued here, none is lost. Each origin node forwards its own proposals to the
    /// next leader.
    fn leader_changed(&mut self) {
        self.pending.leader_changed();
        if mutant::is(Mutant::ForgetWhoWaits) {
            self.line = ProposalQueue::default();
            return;
        }
        if self.pending.keep_awaited(&mut self.line) > 0 {
            self.abandon_writes();
        } else if !self.line.is_empty() {
            rare::taken(Rare::HeldForNextLeader);
        }
    }

    fn abandon_writes(&mut self) {
        let lost = self.pending.abandon_all();
        self.line = ProposalQueue::default();
        if lost > 0 {
            rare::taken(Rare::WritesLostFromSight);
            tracing::info!(
                lost,
                "the outcome of forwarded writes cannot be known; their connections are closed"
            );
        }
    }

    fn open_route(&self) -> LeaderRoute {
        let Some(leader) = self.view.leader else { return LeaderRoute::Nowhere { retry_at: None } };
        if decides!("leader-is-this-node", leader == self.me) {
            return LeaderRoute::Here;
        }
        match self.peers.peer(leader) {
            Some(peer) => LeaderRoute::There(Box::new(peer.forward_link(self.view.term))),
            None => LeaderRoute::Nowhere { retry_at: Some(time::now() + RETRY) },
        }
    }

    /// Takes queued work while the line has room: the node's own writes in turn with the batches that came
    /// before them.
    fn fill(&mut self) {
        while self.takes() {
            let is_own_turn = decides!("own-writes-have-turn", self.ahead == 0 || self.queue.is_empty());
            // If no batch is ahead, the arriving writes may collect.
            let has_own = !self.submissions.is_settled()
                || !self.queue.is_empty() && !self.submissions.arriving.is_empty();
            if is_own_turn
                && has_own
                && let Some(room) = self.pending.room_now()
                && self.gather(room)
            {
                self.ahead = self.queue.len();
                continue;
            }
            let Ok(batch) = self.queue.try_recv() else { return };
            self.ahead = self.ahead.saturating_sub(1);
            self.accept(batch);
        }
    }

    /// Accepts proposals for the current term of this leader; their origins have given up those of earlier
    /// terms. A batch may arrive before this task has seen its term.
    fn accept(&mut self, batch: TermBatch) {
        self.follow();
        if decides!("forwarded-batch-is-of-this-term", self.leads() && batch.term == self.view.term) {
            self.line.extend(batch.proposals);
        }
    }

    /// Takes waiting writes, as far as line and window have room, and registers each for its reply. Admits
    /// one oversized write when the line is empty and the window permits. Returns whether any write was
    /// taken.
    fn gather(&mut self, room: Room) -> bool {
        let (commands, bytes) = self.line.room();
        let (most, most_bytes) = (room.commands.min(commands), room.bytes.min(bytes));
        assert!(most > 0 && most_bytes > 0, "writes are taken where there is room");
        let takes_larger = |line: &ProposalQueue| line.is_empty() && room.takes_larger;
        let (mut count, mut bytes, mut has_any, now) = (0, 0, false, time::now());
        while count < most
            && bytes < most_bytes
            && let limit = if takes_larger(&self.line) { usize::MAX } else { most_bytes - bytes }
            && let Some((weight, submission)) = self.submissions.next(limit)
        {
            if !std::mem::replace(&mut has_any, true) {
                self.metrics.stage_seconds.record(Stage::Queue, now.saturating_since(submission.received));
            }
            busy::spend(Work::Command, 1);
            // A connection that has lost an earlier write must not get a later one executed: its client
            // repeats both, and the order would be wrong.
            if decides!("writer-has-lost", submission.reply_to.has_lost()) {
                rare::taken(Rare::WriterGone);
            } else if decides!("attach-is-of-open-connection", !attaches_closed_connection(&submission)) {
                let origin = self.pending.register(submission.reply_to, submission.tag, weight, now);
                let proposal = Proposal {
                    origin,
                    session: submission.session,
                    attachment: submission.attachment,
                    identities: submission.identities,
                    command: submission.command,
                };
                self.line.push(weight, proposal);
                (count, bytes) = (count + 1, bytes + weight);
            }
        }
        if mutant::is(Mutant::ReorderBatch) {
            let mut all = self.line.take();
            all.reverse();
            self.line.push_front(all);
        }
        has_any
    }

    /// Forwards queued writes, as far as the link has room; a later link event triggers the rest.
    fn forward(&mut self) {
        while let LeaderRoute::There(link) = &mut self.route
            && !self.line.is_empty()
        {
            if decides!("leader-link-is-full", !link.has_room()) {
                if link.is_waiting() {
                    rare::taken(Rare::ForwardWindowFull);
                }
                return;
            }
            let batch = self.line.take();
            self.metrics.forwarded_total.add(batch.len() as u64);
            if let Err(error) = link.send(batch) {
                tracing::error!(%error, "giving up a batch of writes");
                self.abandon_writes();
            }
        }
    }

    fn on_event(&mut self, event: ForwardEvent) {
        let (taken_back, pause) = match event {
            ForwardEvent::Moved => return,
            ForwardEvent::Refused { untaken, refusal } => {
                rare::taken(Rare::ForwardRefused);
                tracing::debug!(%refusal, "the leader did not take forwarded writes");
                (untaken, if refusal == Refusal::NotServing { RETRY_LEAVING } else { RETRY })
            }
            ForwardEvent::Lost { unknown, error } => {
                tracing::debug!(%error, "the way to the leader is lost");
                let is_unknown = !unknown.is_empty();
                rare::taken(if is_unknown { Rare::ForwardLinkLost } else { Rare::ForwardLinkLostIdle });
                if decides!("forwarded-outcome-is-unknown", is_unknown) && !mutant::is(Mutant::ForwardAgain) {
                    self.abandon_writes();
                    (Vec::new(), RETRY)
                } else {
                    (unknown, RETRY)
                }
            }
        };
        self.line.push_front(taken_back.into_iter().flatten().collect());
        self.route = LeaderRoute::Nowhere { retry_at: Some(time::now() + pause) };
    }
}

/// Returns whether the command would move the session from a possibly live connection to a closed one.
fn attaches_closed_connection(submission: &Submission) -> bool {
    let attaches = matches!(submission.command, Command::Reattach { .. });
    attaches && submission.reply_to.is_closed()
}

async fn next_event(route: &mut LeaderRoute) -> ForwardEvent {
    match route {
        LeaderRoute::There(link) => link.next().await,
        LeaderRoute::Nowhere { .. } | LeaderRoute::Here => std::future::pending().await,
    }
}

/// Lets every task that is ready now run first. Waits for no event: without other ready tasks this returns at
/// once. Cancel safe.
///
/// The runtime runs a task that has just been woken before all other ready tasks, which is right for a single
/// request. But the sockets of many clients become readable together: the intake would take one write at a
/// time and forward each alone, with a frame, two system calls and a wake-up of the leader per command.
pub(super) async fn yield_to_ready() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        // A task that is woken while it runs goes to the end of the queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests;
