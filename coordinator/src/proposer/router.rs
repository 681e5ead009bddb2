//! This node's side: takes its clients' writes and brings them to the leader, in order.
//!
//! While there is no way to a leader nothing is taken from the queue, so connections feel it as
//! back-pressure. When the leader changes, or the connection to it breaks with batches on the way, the
//! outcome of what was handed over cannot be known: everybody who waits is told so (`Message::Lost`), and
//! their clients come back and look. What was certainly not handed over is held and goes to the next leader.
//!
//! Invariant: proposals of one connection reach the log in order, without gaps: either all that are held go
//! on, or all are given up. Invariant: beyond what one batch takes, writes wait in the fair queue, and only
//! as many are under way as the window allows, so no connection waits long for the writes of others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::{TermBatch, weight_of};
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
use super::submissions::Submissions;
use super::window::Room;
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
    pub submissions: Submissions,
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
            // What finds no room is tried again with the next event of the link.
            self.send_held(&mut route, &mut held).await;
            let takes = !blocked && held.0.is_empty();
            let waiting = takes && !self.submissions.is_settled();
            if waiting && let Some(room) = self.pending.room_now() {
                self.gather(None, room, &mut held);
                busy::end_turn_if_over().await;
                continue;
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
                () = time::sleep(pause), if blocked && view.leader.is_some() => {
                    // A snapshot may have come meanwhile, and who waited was told that it is unknown.
                    self.pending.keep_awaited(&mut held.0);
                    route = self.open_route(view);
                }
                () = self.pending.room(), if waiting => {}
                first = self.submissions.arrival(), if takes => match first {
                    Some(first) => {
                        yield_to_ready().await;
                        match self.pending.room_now() {
                            Some(room) => self.gather(Some(first), room, &mut held),
                            None => self.submissions.wait(first),
                        }
                    }
                    None => return,
                },
            }
        }
    }

    /// Whatever an old leader may have is lost from sight. If all that waits is still held here, nothing is.
    fn leader_changed(&self, held: &mut Held) {
        self.pending.leader_changed();
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

    /// Takes what is waiting, within the bounds of a batch and of the window, and registers it for its
    /// answer. Holds the batch.
    fn gather(&mut self, arrived: Option<Submission>, room: Room, held: &mut Held) {
        let (most, most_bytes) = (room.commands.min(BATCH_MAX_COMMANDS), room.bytes.min(BATCH_MAX_BYTES));
        assert!(most > 0 && most_bytes > 0, "a batch is made where there is room");
        let mut next = self.submissions.first(arrived, most);
        let mut batch = Vec::with_capacity(most.min(1 + self.submissions.len()));
        let (mut bytes, now) = (0, time::now());
        if let Some(first) = &next {
            self.metrics.stage_seconds.record(Stage::Queue, now.saturating_since(first.received));
        }
        while let Some(submission) = next {
            // One that has lost an earlier write may not have a later one done: its client sends both again,
            // and the order would be wrong.
            if submission.reply_to.has_lost() {
                rare::taken(Rare::WriterGone);
            } else if !is_attach_of_nobody(&submission) {
                let more = weight_of(&submission.command, &submission.identities);
                let origin = self.pending.register(submission.reply_to, submission.tag, more, now);
                batch.push(Proposal {
                    origin,
                    session: submission.session,
                    attachment: submission.attachment,
                    identities: submission.identities,
                    command: submission.command,
                });
                bytes += more;
            }
            busy::spend(Work::Command, 1);
            let full = batch.len() >= most || bytes >= most_bytes;
            if full {
                self.submissions.wait_all();
            }
            next = if full { None } else { self.submissions.next(most_bytes - bytes) };
        }
        assert!(batch.len() <= most, "no more than there is room for");
        if mutant::is(Mutant::ReorderBatch) {
            batch.reverse();
        }
        self.metrics.proposals_total.add(batch.len() as u64);
        held.0.extend((!batch.is_empty()).then_some(batch));
    }

    /// Sends what is held, in order, as far as there is room.
    async fn send_held(&mut self, route: &mut Route, held: &mut Held) {
        loop {
            match route {
                Route::Nowhere => return,
                Route::There(link) if !link.has_room() => {
                    if link.is_waiting() && !held.0.is_empty() {
                        rare::taken(Rare::ForwardWindowFull);
                    }
                    return;
                }
                Route::Here { .. } | Route::There(_) => {}
            }
            let Some(batch) = held.0.pop_front() else { return };
            let count = batch.len() as u64;
            match route {
                // The folder drains its queue also when it may not propose; so this does not wait for long.
                Route::Here { term } => {
                    let _ = self.batcher.send(TermBatch { term: *term, proposals: batch }).await;
                }
                Route::There(link) => match link.send(batch) {
                    Ok(()) => self.metrics.forwarded_total.add(count),
                    Err(error) => {
                        tracing::error!(%error, "giving up a batch of writes");
                        self.give_up(held);
                    }
                },
                Route::Nowhere => unreachable!("Invariant: there is a way"),
            }
        }
    }

    /// When the link has ended: after how long to try again.
    fn on_event(&self, event: ForwardEvent, held: &mut Held) -> Option<Duration> {
        match event {
            ForwardEvent::Moved => None,
            ForwardEvent::Refused { untaken, refusal } => {
                rare::taken(Rare::ForwardRefused);
                tracing::debug!(%refusal, "the leader did not take forwarded writes");
                held.take_back(untaken);
                Some(if refusal == Refusal::NotServing { RETRY_LEAVING } else { RETRY })
            }
            ForwardEvent::Lost { unknown, error } => {
                tracing::debug!(%error, "the way to the leader is lost");
                let is_unknown = !unknown.is_empty();
                rare::taken(if is_unknown { Rare::ForwardLinkLost } else { Rare::ForwardLinkLostIdle });
                if is_unknown && !mutant::is(Mutant::ForwardAgain) {
                    self.give_up(held);
                } else {
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
    use bytes::Bytes;
    use rowlock_consensus::batching::weight;
    use rowlock_consensus::peer::{Identity, PeerError};
    use rowlock_env::task::TaskGroup;
    use rowlock_proto::request::SetData;
    use rowlock_proto::{SessionId, Version};
    use rowlock_state::command::{Attachment, Command};
    use rowlock_types::limits::PROPOSER_QUEUE_MAX;

    use super::*;
    use crate::delivery::outbox::{self, Inbox, Message, Outbox};

    const LEADER: NodeId = NodeId(2);

    fn router() -> Router {
        let us = Identity { cluster: "test".to_owned(), node: NodeId(1) };
        Router {
            me: us.node,
            submissions: Submissions::new(mpsc::channel(1).1),
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
                origin: router.pending.register(reply_to, number, 100, time::now()),
                session: SessionId(1),
                attachment: Attachment(1),
                identities: Default::default(),
                command: Command::Noop,
            };
            (vec![proposal], inbox)
        };
        (1..=2).map(one).unzip()
    }

    fn lost(unknown: Vec<Vec<Proposal>>) -> ForwardEvent {
        ForwardEvent::Lost { unknown, error: PeerError::Timeout { node: LEADER } }
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
        held.0.extend(unknown.split_off(1));
        assert_eq!(router.on_event(lost(unknown), &mut held), Some(RETRY));
        assert_eq!(held.0.len(), 0);
        assert_eq!(heard(&mut waiting), [true, true], "nor the second, which would overtake it");
        assert!(router.pending.is_empty());
        let mistake = mutant::AVAILABLE.then(|| mutant::with(Some(Mutant::ForwardAgain)));
        if mistake.is_some() {
            let (mut unknown, _waiting) = two(&router);
            held.0.extend(unknown.split_off(1));
            router.on_event(lost(unknown), &mut held);
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
    fn writes_that_the_leader_has_not_taken_go_on_in_their_order() {
        let (router, mut held) = (router(), Held::default());
        let (refused, mut waiting) = two(&router);
        let (later, _also) = two(&router);
        held.0.extend(later);
        assert_eq!(router.on_event(lost(Vec::new()), &mut held), Some(RETRY));
        let refused = ForwardEvent::Refused { untaken: refused, refusal: Refusal::NotServing };
        assert_eq!(router.on_event(refused, &mut held), Some(RETRY_LEAVING));
        assert_eq!(requests(&held), [1, 2, 3, 4]);
        assert_eq!(heard(&mut waiting), [false, false]);
        assert_eq!(router.pending.len(), 4);
    }

    fn set(by: &Outbox, session: i64, data: &Bytes) -> Submission {
        let data = Some(data.clone());
        let set = SetData { path: "/x".to_owned(), data, version: Version::ANY };
        Submission {
            session: SessionId(session),
            attachment: Attachment(1),
            identities: Default::default(),
            command: Command::SetData(set),
            reply_to: by.clone(),
            tag: 0,
            received: time::now(),
        }
    }

    /// In which batch, from 1 on, the write of a quiet client is that comes behind those of the others.
    fn batch_of_the_quiet_one(others: i64, each: usize, bytes: usize) -> usize {
        const QUIET: SessionId = SessionId(0);
        let (submit, arriving) = mpsc::channel(PROPOSER_QUEUE_MAX);
        let mut router = Router { submissions: Submissions::new(arriving), ..router() };
        let (small, data) = (Bytes::from_static(&[0; 10]), Bytes::from(vec![0; bytes]));
        let clients: Vec<_> = (0..=others).map(|_| outbox::channel()).collect();
        for _ in 0..each {
            for session in 1..=others {
                let by = &clients[usize::try_from(session).expect("few")].0;
                assert!(submit.try_send(set(by, session, &data)).is_ok());
            }
        }
        assert!(submit.try_send(set(&clients[0].0, QUIET.0, &small)).is_ok());
        for batch in 1.. {
            let mut held = Held::default();
            let first = router.submissions.arriving.try_recv().ok();
            let room = router.pending.room_now().expect("all has been answered");
            router.gather(first, room, &mut held);
            let proposals = held.0.pop_front().expect("there is more");
            let sum: usize = proposals.iter().map(weight).sum();
            assert!(proposals.len() <= BATCH_MAX_COMMANDS && sum < BATCH_MAX_BYTES + bytes, "{sum}");
            if proposals.iter().any(|proposal| proposal.session == QUIET) {
                return batch;
            }
            router.pending.give_up_all();
        }
        unreachable!("it is in one of them")
    }

    #[test]
    fn a_quiet_clients_write_is_in_the_next_batch_but_one_whatever_others_submit() {
        assert_eq!(batch_of_the_quiet_one(30, 34, 10), 1, "behind 1,020 small ones");
        assert_eq!(batch_of_the_quiet_one(8, 60, 900_000), 2, "behind 480 large ones");
        assert_eq!(batch_of_the_quiet_one(1, 1_000, 100_000), 1, "behind one that sends much");
    }

    #[test]
    fn writes_beyond_the_window_wait_until_others_are_answered() {
        let (submit, arriving) = mpsc::channel(PROPOSER_QUEUE_MAX);
        let mut router = Router { submissions: Submissions::new(arriving), ..router() };
        let (outbox, _inbox) = outbox::channel();
        for _ in 0..PROPOSER_QUEUE_MAX {
            assert!(submit.try_send(set(&outbox, 1, &Bytes::new())).is_ok());
        }
        let mut held = Held::default();
        while let Some(room) = router.pending.room_now() {
            router.gather(None, room, &mut held);
        }
        assert_eq!(router.pending.len(), BATCH_MAX_COMMANDS, "the window at the beginning");
        assert_eq!(router.submissions.waiting.len(), PROPOSER_QUEUE_MAX - BATCH_MAX_COMMANDS);
        router.pending.give_up_all();
        assert!(router.pending.room_now().is_some());
    }
}
