//! The node's intake of proposals: takes its clients' writes and brings them into the log, in order. While
//! another node leads, they go to it over a link; while this node leads, it makes log entries of them and of
//! what the other nodes and its own tasks propose.
//!
//! While there is no way to a leader nothing is taken from the queue, so connections feel it as
//! back-pressure. When the leader changes, or the connection to it breaks with batches on the way, the
//! outcome of what was handed over cannot be known: everybody who waits is told so (`Message::Lost`), and
//! their clients come back and look. What was certainly not handed over stays in line for the next leader.
//!
//! Invariant: proposals of one connection reach the log in order, without gaps: either all that are in line
//! go on, or all are given up. Invariant: beyond what one entry takes, writes wait in the fair queue, and
//! only as many are under way as the window allows, so no connection waits long for the writes of others.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::{Entries, ProposalQueue, TermBatch};
use rowlock_consensus::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::busy::{self, Work};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_state::command::{Command, Proposal};
use rowlock_types::metrics::{Metrics, Stage};
use tokio::sync::mpsc;

use super::Submission;
use super::pending::PendingWrites;
use super::submissions::Submissions;
use super::window::Room;
use super::yield_to_ready::yield_to_ready;

/// Pause before the next try after a refusal or a lost connection, until the nodes' views agree again.
const RETRY: Duration = Duration::from_millis(20);
/// As `RETRY`, when the leader has said that it is about to stop: another one is to be heard of before.
/// Nothing is on the way to it meanwhile, so nothing is lost from sight when that happens.
const RETRY_LEAVING: Duration = Duration::from_secs(2);

pub struct Intake {
    me: NodeId,
    /// Writes of this node's clients.
    submissions: Submissions,
    /// From other nodes and from this node's own tasks, for the terms in which this node leads.
    queue: mpsc::Receiver<TermBatch>,
    /// How many batches of the queue go before the next writes of this node's clients.
    ahead: usize,
    leadership: watch::Receiver<Leadership>,
    view: Leadership,
    route: LeaderRoute,
    /// Proposals that are neither in an entry nor with another node.
    line: ProposalQueue,
    pending: Arc<PendingWrites>,
    /// Links to the other nodes.
    peers: PeerPool,
    metrics: Arc<Metrics>,
}

/// How proposals get to the leader.
enum LeaderRoute {
    Nowhere {
        /// When to try again, if there is a leader.
        retry_at: Option<Instant>,
    },
    /// This node leads: they go into entries.
    Here,
    /// The link keeps what the leader has not acknowledged.
    There(Box<ForwardLink>),
}

impl Intake {
    /// Takes what arrives in `submissions` and `queue`. Knows of no leader yet.
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

    /// Takes and hands on proposals until `shutdown`.
    pub async fn run(mut self, mut entries: Entries, shutdown: Shutdown) {
        loop {
            self.turn();
            entries.begin_term(self.view.term);
            busy::end_turn_if_over().await;
            let due = match self.route {
                LeaderRoute::Nowhere { retry_at } => retry_at,
                LeaderRoute::Here if self.view.ready => entries.due(&self.line),
                LeaderRoute::Here | LeaderRoute::There(_) => None,
            };
            if due.is_some_and(|at| at <= time::now()) {
                if self.leads() {
                    entries.propose(&mut self.line).await;
                } else {
                    // A snapshot may have come meanwhile, and who waited was told that it is unknown.
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
                // Those of many connections arrive together.
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

    /// Does what can be done without waiting, after whatever has happened.
    fn turn(&mut self) {
        self.follow();
        self.fill();
        self.forward();
    }

    fn leads(&self) -> bool {
        matches!(self.route, LeaderRoute::Here)
    }

    /// Whether more writes of this node's clients may come in line.
    fn takes(&self) -> bool {
        !matches!(self.route, LeaderRoute::Nowhere { .. }) && !self.line.is_full()
    }

    /// Looks who leads now.
    fn follow(&mut self) {
        let now = *self.leadership.borrow_and_update();
        let before = std::mem::replace(&mut self.view, now);
        if (now.term, now.leader) != (before.term, before.leader) {
            self.leader_changed();
            self.route = self.open_route();
        }
    }

    /// Whatever an old leader may have is lost from sight. If all that waits is still in line here, nothing
    /// is. Proposals of other nodes are theirs to bring to the next leader.
    fn leader_changed(&mut self) {
        self.pending.leader_changed();
        if mutant::is(Mutant::ForgetWhoWaits) {
            self.line = ProposalQueue::default();
            return;
        }
        if self.pending.keep_awaited(&mut self.line) > 0 {
            self.give_up();
        } else if !self.line.is_empty() {
            rare::taken(Rare::HeldForNextLeader);
        }
    }

    fn give_up(&mut self) {
        let lost = self.pending.give_up_all();
        self.line = ProposalQueue::default();
        if lost > 0 {
            rare::taken(Rare::WritesLostFromSight);
            self.metrics.proposals_lost_total.add(lost as u64);
            tracing::info!(
                lost,
                "the outcome of forwarded writes cannot be known; their connections are closed"
            );
        }
    }

    fn open_route(&self) -> LeaderRoute {
        let Some(leader) = self.view.leader else { return LeaderRoute::Nowhere { retry_at: None } };
        if leader == self.me {
            return LeaderRoute::Here;
        }
        match self.peers.peer(leader) {
            Some(peer) => LeaderRoute::There(Box::new(peer.forward_link(self.view.term))),
            None => LeaderRoute::Nowhere { retry_at: Some(time::now() + RETRY) },
        }
    }

    /// Takes what waits, as far as there is room in line: the node's own writes in turn with the batches that
    /// came before them.
    fn fill(&mut self) {
        while self.takes() {
            let is_own_turn = self.ahead == 0 || self.queue.is_empty();
            // Without others in front, those that arrive are left to arrive together.
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

    /// Takes proposals for the term in which this node leads; those for an earlier one have been given up by
    /// their origins. A batch may be here before this task has seen its term.
    fn accept(&mut self, batch: TermBatch) {
        self.follow();
        if self.leads() && batch.term == self.view.term {
            self.line.extend(batch.proposals);
        }
    }

    /// Takes what is waiting, as far as there is room in line and in the window, and registers it for its
    /// answer. A single larger write passes an empty line, if it may. Whether there was anything.
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
            // One that has lost an earlier write may not have a later one done: its client sends both again,
            // and the order would be wrong.
            if submission.reply_to.has_lost() {
                rare::taken(Rare::WriterGone);
            } else if !is_attach_of_nobody(&submission) {
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
        self.metrics.proposals_total.add(count as u64);
        has_any
    }

    /// Sends what is in line, as far as the link has room; the rest goes after one of its next events.
    fn forward(&mut self) {
        while let LeaderRoute::There(link) = &mut self.route
            && !self.line.is_empty()
        {
            if !link.has_room() {
                if link.is_waiting() {
                    rare::taken(Rare::ForwardWindowFull);
                }
                return;
            }
            let batch = self.line.take();
            self.metrics.forwarded_total.add(batch.len() as u64);
            if let Err(error) = link.send(batch) {
                tracing::error!(%error, "giving up a batch of writes");
                self.give_up();
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
                if is_unknown && !mutant::is(Mutant::ForwardAgain) {
                    self.give_up();
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

/// It would take the session to a connection that is gone, from one that may live.
fn is_attach_of_nobody(submission: &Submission) -> bool {
    let attaches = matches!(submission.command, Command::Reattach { .. });
    attaches && submission.reply_to.is_closed()
}

async fn next_event(route: &mut LeaderRoute) -> ForwardEvent {
    match route {
        LeaderRoute::There(link) => link.next().await,
        LeaderRoute::Nowhere { .. } | LeaderRoute::Here => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
