//! This node's side: takes its clients' writes and brings them to the leader, in order.
//!
//! While there is no way to a leader nothing is taken from the queue, so connections feel it as
//! back-pressure. When the leader changes, or the connection to it breaks with batches on the way, the
//! outcome of what was handed over cannot be known: everybody who waits is told so (`Message::Lost`), and
//! their clients come back and look. What was certainly not handed over is held and goes to the next leader.
//!
//! Invariant: proposals of one connection reach the log in order, without gaps: either all that are held go
//! on, or all are given up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::{TermBatch, weight};
use rowlock_consensus::peer::forward::SendError;
use rowlock_consensus::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::busy::{self, Work};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::{Command, Proposal};
use rowlock_types::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};
use rowlock_types::metrics::{Metrics, Stage};
use tokio::sync::mpsc;

use super::Submission;
use super::pending::Pending;
use super::yield_to_ready::yield_to_ready;

/// Pause before the next try after a refusal or a lost connection, until the nodes' views agree again.
const RETRY: Duration = Duration::from_millis(20);
/// As `RETRY`, when the leader has said that it is about to stop: another one is to be heard of before.
/// Nothing is on the way to it meanwhile, so nothing is lost from sight when that happens.
const RETRY_LEAVING: Duration = Duration::from_secs(2);

/// What the task needs.
pub struct Router {
    /// This node.
    pub me: NodeId,
    /// From the connections.
    pub submissions: mpsc::Receiver<Submission>,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Who waits.
    pub pending: Arc<Pending>,
    /// The way to this node's own folder.
    pub batcher: mpsc::Sender<TermBatch>,
    /// The ways to the other nodes.
    pub peers: PeerPool,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Where proposals go at the moment.
enum Route {
    Nowhere,
    Here {
        term: u64,
    },
    /// The link keeps what the leader has not acknowledged.
    There(Box<ForwardLink>),
}

/// Registered proposals that certainly no leader has; first in line.
#[derive(Default)]
struct Held(VecDeque<Vec<Proposal>>);

impl Held {
    /// What was refused or never left goes back to the head of the line.
    fn take_back(&mut self, batches: Vec<Vec<Proposal>>) {
        for batch in batches.into_iter().rev() {
            self.0.push_front(batch);
        }
    }
}

impl Router {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut view = Leadership::default();
        let mut route = Route::Nowhere;
        let mut held = Held::default();
        let mut pause = RETRY;
        loop {
            let now = *self.leadership.borrow_and_update();
            if (now.term, now.leader) != (view.term, view.leader) {
                view = now;
                self.leader_changed(&mut held);
                route = self.open_route(view);
            }
            let blocked = matches!(route, Route::Nowhere);
            let mut wait = blocked && view.leader.is_some();
            if !blocked && !held.0.is_empty() {
                wait = !self.send_held(&mut route, &mut held).await;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                event = next_event(&mut route) => {
                    if let Some(retry) = self.on_event(event, &mut held) {
                        (route, pause) = (Route::Nowhere, retry);
                    }
                }
                () = time::sleep(if blocked { pause } else { RETRY }), if wait => if blocked {
                    // A snapshot may have come meanwhile, and who waited was told that it is unknown.
                    self.pending.keep_awaited(&mut held.0);
                    route = self.open_route(view);
                },
                first = self.submissions.recv(), if !blocked && held.0.is_empty() => match first {
                    Some(first) => {
                        yield_to_ready().await;
                        let batch = self.gather(first);
                        held.0.extend((!batch.is_empty()).then_some(batch));
                    }
                    None => return,
                },
            }
        }
    }

    /// Whatever an old leader may have is lost from sight. If all that waits is still held here, nothing is.
    fn leader_changed(&self, held: &mut Held) {
        if mutant::is(Mutant::ForgetWhoWaits) {
            *held = Held::default();
            return;
        }
        if self.pending.keep_awaited(&mut held.0) > 0 {
            self.give_up(held);
        } else if !held.0.is_empty() {
            rare::taken(Rare::HeldForNextLeader);
        }
    }

    fn give_up(&self, held: &mut Held) {
        let lost = self.pending.give_up_all();
        *held = Held::default();
        if lost > 0 {
            rare::taken(Rare::WritesLostFromSight);
            self.metrics.proposals_lost_total.add(lost as u64);
            tracing::info!(
                lost,
                "the outcome of forwarded writes cannot be known; their connections are closed"
            );
        }
    }

    fn open_route(&self, view: Leadership) -> Route {
        match view.leader {
            Some(leader) if leader == self.me => Route::Here { term: view.term },
            Some(leader) => match self.peers.peer(leader) {
                Some(peer) => Route::There(Box::new(peer.forward_link(view.term))),
                None => Route::Nowhere,
            },
            None => Route::Nowhere,
        }
    }

    /// Takes what is waiting, within a batch's bounds, and registers it for its answer.
    fn gather(&mut self, first: Submission) -> Vec<Proposal> {
        let mut batch = Vec::with_capacity(BATCH_MAX_COMMANDS.min(1 + self.submissions.len()));
        let (mut bytes, now) = (0, time::now());
        self.metrics.stage_seconds.record(Stage::Queue, now.saturating_since(first.received));
        let mut next = Some(first);
        while let Some(submission) = next {
            // One that has lost an earlier write may not have a later one done: its client sends both again,
            // and the order would be wrong.
            if submission.reply_to.has_lost() {
                rare::taken(Rare::WriterGone);
            } else if !is_attach_of_nobody(&submission) {
                let origin = self.pending.register(submission.reply_to, submission.tag, now);
                batch.push(Proposal {
                    origin,
                    session: submission.session,
                    attachment: submission.attachment,
                    identities: submission.identities,
                    command: submission.command,
                });
                bytes += batch.last().map_or(0, weight);
            }
            busy::spend(Work::Command, 1);
            let full = batch.len() >= BATCH_MAX_COMMANDS || bytes >= BATCH_MAX_BYTES;
            next = if full { None } else { self.submissions.try_recv().ok() };
        }
        if mutant::is(Mutant::ReorderBatch) {
            batch.reverse();
        }
        self.metrics.proposals_total.add(batch.len() as u64);
        batch
    }

    /// Sends what is held, in order. False: it must be tried again (the link has ended or is full, see its
    /// events).
    async fn send_held(&mut self, route: &mut Route, held: &mut Held) -> bool {
        while let Some(batch) = held.0.pop_front() {
            match route {
                Route::Here { term } => {
                    // The folder drains its queue also when it may not propose; so this does not wait for
                    // long.
                    if self.batcher.send(TermBatch { term: *term, proposals: batch }).await.is_err() {
                        return true;
                    }
                }
                Route::There(link) => {
                    let count = batch.len() as u64;
                    match link.send(batch) {
                        Ok(()) => self.metrics.forwarded_total.add(count),
                        Err(SendError::Full(batch) | SendError::Ended(batch)) => {
                            rare::taken(Rare::ForwardWindowFull);
                            held.0.push_front(batch);
                            return false;
                        }
                        Err(SendError::TooLarge(_)) => {
                            tracing::error!(
                                "a batch of writes does not fit a frame between nodes; giving it up"
                            );
                            self.give_up(held);
                        }
                    }
                }
                Route::Nowhere => {
                    held.0.push_front(batch);
                    return false;
                }
            }
        }
        true
    }

    /// When the link has ended: after how long to try again.
    fn on_event(&self, event: ForwardEvent, held: &mut Held) -> Option<Duration> {
        match event {
            ForwardEvent::Acked => None,
            ForwardEvent::Refused { untaken, refusal } => {
                rare::taken(Rare::ForwardRefused);
                tracing::debug!(%refusal, "the leader did not take forwarded writes");
                held.take_back(untaken);
                Some(if refusal == Refusal::NotServing { RETRY_LEAVING } else { RETRY })
            }
            ForwardEvent::Lost { unknown, unsent, error } => {
                tracing::debug!(%error, "the way to the leader is lost");
                let is_unknown = !unknown.is_empty();
                rare::taken(if is_unknown { Rare::ForwardLinkLost } else { Rare::ForwardLinkLostIdle });
                if is_unknown && !mutant::is(Mutant::ForwardAgain) {
                    self.give_up(held);
                } else {
                    held.take_back(unsent);
                    held.take_back(unknown);
                }
                Some(RETRY)
            }
        }
    }
}

/// It would take the session to a connection that is gone, from one that may live.
fn is_attach_of_nobody(submission: &Submission) -> bool {
    let attaches = matches!(submission.command, Command::Reattach { .. });
    attaches && submission.reply_to.is_closed()
}

async fn next_event(route: &mut Route) -> ForwardEvent {
    match route {
        Route::There(link) => link.next().await,
        Route::Nowhere | Route::Here { .. } => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use rowlock_consensus::peer::{Identity, PeerError};
    use rowlock_env::task::TaskGroup;
    use rowlock_proto::SessionId;
    use rowlock_state::command::{Attachment, Command};

    use super::*;
    use crate::delivery::outbox::{self, Inbox, Message};

    const LEADER: NodeId = NodeId(2);

    fn router() -> Router {
        let us = Identity { cluster: "test".to_owned(), node: NodeId(1) };
        Router {
            me: us.node,
            submissions: mpsc::channel(1).1,
            leadership: watch::channel(Leadership::default()).1,
            pending: Arc::new(Pending::new(us.node, 7)),
            batcher: mpsc::channel(1).0,
            peers: PeerPool::new(us, TaskGroup::new(Shutdown::new())),
            metrics: Arc::default(),
        }
    }

    /// Two batches of one write each, registered, and who waits for them.
    fn two(router: &Router) -> (Vec<Vec<Proposal>>, Vec<Inbox>) {
        let one = |number| {
            let (reply_to, inbox) = outbox::channel();
            let proposal = Proposal {
                origin: router.pending.register(reply_to, number, time::now()),
                session: SessionId(1),
                attachment: Attachment(1),
                identities: Default::default(),
                command: Command::Noop,
            };
            (vec![proposal], inbox)
        };
        (1..=2).map(one).unzip()
    }

    fn lost(unknown: Vec<Vec<Proposal>>, unsent: Vec<Vec<Proposal>>) -> ForwardEvent {
        ForwardEvent::Lost { unknown, unsent, error: PeerError::Timeout { node: LEADER } }
    }

    fn requests(held: &Held) -> Vec<u64> {
        held.0.iter().flatten().map(|proposal| proposal.origin.request).collect()
    }

    fn heard(waiting: &mut [Inbox]) -> Vec<bool> {
        let is_lost = |inbox: &mut Inbox| {
            let mut messages = VecDeque::new();
            inbox.take(&mut messages).is_ok() && matches!(messages.pop_front(), Some(Message::Lost))
        };
        waiting.iter_mut().map(is_lost).collect()
    }

    #[test]
    fn writes_that_the_leader_may_have_are_given_up_and_never_sent_again() {
        let (router, mut held) = (router(), Held::default());
        let (mut unknown, mut waiting) = two(&router);
        // The first batch left, and its acknowledgement did not come.
        let unsent = unknown.split_off(1);
        assert_eq!(router.on_event(lost(unknown, unsent), &mut held), Some(RETRY));
        assert_eq!(held.0.len(), 0);
        assert_eq!(heard(&mut waiting), [true, true], "nor the second, which would overtake it");
        assert!(router.pending.is_empty());
        let mistake = mutant::AVAILABLE.then(|| mutant::with(Some(Mutant::ForwardAgain)));
        if mistake.is_some() {
            let (mut unknown, _waiting) = two(&router);
            let unsent = unknown.split_off(1);
            router.on_event(lost(unknown, unsent), &mut held);
            assert_eq!(requests(&held), [3, 4], "the mistake would be seen here");
        }
    }

    /// A follower that holds writes for want of a leader may be sent a snapshot (seed 501,935).
    #[test]
    fn held_writes_for_which_nobody_waits_any_more_are_dropped_before_the_next_leader() {
        let (router, mut held) = (router(), Held::default());
        let (before, mut waiting) = two(&router);
        held.0.extend(before);
        router.pending.give_up_all();
        let (since, mut others) = two(&router);
        held.0.extend(since);
        router.leader_changed(&mut held);
        assert_eq!(requests(&held), [3, 4]);
        assert_eq!((heard(&mut waiting), heard(&mut others)), (vec![true; 2], vec![false; 2]));
        router.pending.give_up_all();
        router.leader_changed(&mut held);
        assert!(held.0.is_empty());
    }

    #[test]
    fn writes_that_have_never_left_go_on_in_their_order() {
        let (router, mut held) = (router(), Held::default());
        let (mut first, mut waiting) = two(&router);
        let (later, _also) = two(&router);
        held.0.extend(later);
        let second = first.split_off(1);
        assert_eq!(router.on_event(lost(Vec::new(), second), &mut held), Some(RETRY));
        let refusal = Refusal::NotServing;
        let refused = ForwardEvent::Refused { untaken: first, refusal };
        assert_eq!(router.on_event(refused, &mut held), Some(RETRY_LEAVING));
        assert_eq!(requests(&held), [1, 2, 3, 4]);
        assert_eq!(heard(&mut waiting), [false, false]);
        assert_eq!(router.pending.len(), 4);
    }
}
