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

use rowlock_consensus::folding::{Parcel, weight};
use rowlock_consensus::peer::forward::{BatchSeq, SendError};
use rowlock_consensus::peer::{ForwardEvent, ForwardLink, PeerPool, Refusal};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_state::command::{Command, Proposal};
use rowlock_types::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS, PEER_FORWARD_WINDOW_BATCHES};
use rowlock_types::metrics::Metrics;
use tokio::sync::mpsc;

use super::Submission;
use super::pending::Pending;
use super::turn;

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
    pub folder: mpsc::Sender<Parcel>,
    /// The ways to the other nodes.
    pub peers: PeerPool,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Where proposals go at the moment.
enum Route {
    Nowhere,
    Here { term: u64 },
    There { link: ForwardLink, events: mpsc::Receiver<ForwardEvent> },
}

/// Registered proposals that no leader has yet.
#[derive(Default)]
struct OnTheWay {
    /// Sent over the link and not acknowledged.
    unacked: VecDeque<(BatchSeq, Vec<Proposal>)>,
    /// Certainly not handed over; first in line.
    held: VecDeque<Vec<Proposal>>,
}

impl OnTheWay {
    /// What was refused or never left goes back to the head of the line.
    fn take_back(&mut self) {
        while let Some((_, batch)) = self.unacked.pop_back() {
            self.held.push_front(batch);
        }
    }

    fn held_proposals(&self) -> usize {
        self.held.iter().map(Vec::len).sum()
    }
}

impl Router {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut view = Leadership::default();
        let mut route = Route::Nowhere;
        let mut way = OnTheWay::default();
        let mut pause = RETRY;
        loop {
            let now = *self.leadership.borrow_and_update();
            if (now.term, now.leader) != (view.term, view.leader) {
                view = now;
                self.leader_changed(&mut way);
                route = self.open_route(view);
            }
            let blocked = matches!(route, Route::Nowhere);
            let mut wait = blocked && view.leader.is_some();
            if !blocked && !way.held.is_empty() {
                wait = !self.send_held(&mut route, &mut way).await;
            }
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                changed = self.leadership.changed() => if changed.is_err() { return },
                event = next_event(&mut route) => {
                    if let Some(retry) = self.on_event(event, &mut way) {
                        (route, pause) = (Route::Nowhere, retry);
                    }
                }
                () = time::sleep(if blocked { pause } else { RETRY }), if wait => if blocked { route = self.open_route(view) },
                first = self.submissions.recv(), if !blocked && way.held.is_empty() => match first {
                    Some(first) => {
                        turn::behind_the_others().await;
                        let batch = self.gather(first);
                        way.held.extend((!batch.is_empty()).then_some(batch));
                    }
                    None => return,
                },
            }
        }
    }

    /// Whatever an old leader may have is lost from sight. If all that waits is still held here, nothing is.
    fn leader_changed(&self, way: &mut OnTheWay) {
        if mutant::is(Mutant::ForgetWhoWaits) {
            *way = OnTheWay::default();
        }
        if self.pending.len() > way.held_proposals() && !mutant::is(Mutant::ForgetWhoWaits) {
            self.give_up(way);
        } else if !way.held.is_empty() {
            rare::taken(Rare::HeldForNextLeader);
        }
    }

    fn give_up(&self, way: &mut OnTheWay) {
        let lost = self.pending.give_up_all();
        *way = OnTheWay::default();
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
                Some(peer) => {
                    let (tx, events) = mpsc::channel(PEER_FORWARD_WINDOW_BATCHES);
                    Route::There { link: peer.forward_link(view.term, tx), events }
                }
                None => Route::Nowhere,
            },
            None => Route::Nowhere,
        }
    }

    /// Takes what is waiting, within a batch's bounds, and registers it for its answer.
    fn gather(&mut self, first: Submission) -> Vec<Proposal> {
        let mut batch = Vec::with_capacity(BATCH_MAX_COMMANDS.min(1 + self.submissions.len()));
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(submission) = next {
            // One that has lost an earlier write may not have a later one done: its client sends both again,
            // and the order would be wrong.
            if submission.reply_to.has_lost() {
                rare::taken(Rare::WriterGone);
            } else if !is_attach_of_nobody(&submission) {
                let origin = self.pending.register(submission.reply_to, submission.tag);
                batch.push(Proposal {
                    origin,
                    session: submission.session,
                    attachment: submission.attachment,
                    identities: submission.identities,
                    command: submission.command,
                });
                bytes += batch.last().map_or(0, weight);
            }
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
    async fn send_held(&mut self, route: &mut Route, way: &mut OnTheWay) -> bool {
        while let Some(batch) = way.held.pop_front() {
            match route {
                Route::Here { term } => {
                    // The folder drains its queue also when it may not propose; so this does not wait for
                    // long.
                    if self.folder.send(Parcel { term: *term, proposals: batch }).await.is_err() {
                        return true;
                    }
                }
                Route::There { link, .. } => {
                    let count = batch.len() as u64;
                    match link.send(batch) {
                        Ok((seq, batch)) => {
                            self.metrics.forwarded_total.add(count);
                            way.unacked.push_back((seq, batch));
                        }
                        Err(SendError::Full(batch) | SendError::Ended(batch)) => {
                            rare::taken(Rare::ForwardWindowFull);
                            way.held.push_front(batch);
                            return false;
                        }
                        Err(SendError::TooLarge(_)) => {
                            tracing::error!(
                                "a batch of writes does not fit a frame between nodes; giving it up"
                            );
                            self.give_up(way);
                        }
                    }
                }
                Route::Nowhere => {
                    way.held.push_front(batch);
                    return false;
                }
            }
        }
        true
    }

    /// When the link has ended: after how long to try again.
    fn on_event(&self, event: Option<ForwardEvent>, way: &mut OnTheWay) -> Option<Duration> {
        match event {
            Some(ForwardEvent::Acked { through }) => {
                while way.unacked.front().is_some_and(|(seq, _)| *seq <= through) {
                    way.unacked.pop_front();
                }
                None
            }
            Some(ForwardEvent::Refused { refusal, .. }) => {
                rare::taken(Rare::ForwardRefused);
                tracing::debug!(%refusal, "the leader did not take forwarded writes");
                way.take_back();
                Some(if refusal == Refusal::NotServing { RETRY_LEAVING } else { RETRY })
            }
            Some(ForwardEvent::Lost { unsent, error, .. }) => {
                tracing::debug!(%error, "the way to the leader is lost");
                let unknown = way.unacked.front().is_some_and(|(seq, _)| *seq < unsent);
                rare::taken(if unknown { Rare::ForwardLinkLost } else { Rare::ForwardLinkLostIdle });
                if unknown && !mutant::is(Mutant::ForwardAgain) {
                    self.give_up(way);
                } else {
                    way.take_back();
                }
                Some(RETRY)
            }
            // The link's task has gone without a last word: the node stops.
            None => {
                self.give_up(way);
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

async fn next_event(route: &mut Route) -> Option<ForwardEvent> {
    match route {
        Route::There { events, .. } => events.recv().await,
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
            folder: mpsc::channel(1).0,
            peers: PeerPool::new(us, TaskGroup::new(Shutdown::new())),
            metrics: Arc::default(),
        }
    }

    /// Two batches of one write each, sent over the way to the leader, and who waits for them.
    fn sent(router: &Router) -> (OnTheWay, Vec<Inbox>) {
        let (mut way, mut waiting) = (OnTheWay::default(), Vec::new());
        for number in 1..=2 {
            let (reply_to, inbox) = outbox::channel();
            let batch = vec![Proposal {
                origin: router.pending.register(reply_to, number),
                session: SessionId(1),
                attachment: Attachment(1),
                identities: Default::default(),
                command: Command::Noop,
            }];
            way.unacked.push_back((BatchSeq(number), batch));
            waiting.push(inbox);
        }
        (way, waiting)
    }

    fn lost(unsent: u64) -> Option<ForwardEvent> {
        let error = PeerError::Timeout { node: LEADER };
        Some(ForwardEvent::Lost { unknown: BatchSeq(1), unsent: BatchSeq(unsent), error })
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
        let router = router();
        let (mut way, mut waiting) = sent(&router);
        // The first batch left, and its acknowledgement did not come.
        assert_eq!(router.on_event(lost(2), &mut way), Some(RETRY));
        assert_eq!((way.held.len(), way.unacked.len()), (0, 0));
        assert_eq!(heard(&mut waiting), [true, true], "nor the second, which would overtake it");
        assert!(router.pending.is_empty());
        let mistake = mutant::AVAILABLE.then(|| mutant::with(Some(Mutant::ForwardAgain)));
        if mistake.is_some() {
            let (mut way, _waiting) = sent(&router);
            router.on_event(lost(2), &mut way);
            assert_eq!(way.held.len(), 2, "the mistake would be seen here");
        }
    }

    #[test]
    fn writes_that_have_never_left_go_on_in_their_order() {
        let router = router();
        let (mut way, mut waiting) = sent(&router);
        assert_eq!(router.on_event(lost(1), &mut way), Some(RETRY));
        let requests: Vec<u64> = way.held.iter().flatten().map(|proposal| proposal.origin.request).collect();
        assert_eq!(requests, [1, 2]);
        assert_eq!(heard(&mut waiting), [false, false]);
        assert_eq!(router.pending.len(), 2);
    }
}
