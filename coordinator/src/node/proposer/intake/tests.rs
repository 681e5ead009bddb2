//! Tests of the order and the route of writes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_consensus::batching::weight;
use rowlock_consensus::entry_times::EntryTimes;
use rowlock_consensus::limits::{BATCH_MAX_BYTES, BATCH_MAX_COMMANDS};
use rowlock_consensus::peer::PeerError;
use rowlock_proto::request::SetData;
use rowlock_proto::{ErrorCode, Request, SessionId, Version, Zxid};
use rowlock_state::command::{Attachment, Origin};
use rowlock_state::outcome::Applied;
use rowlock_transport::limits::PEER_FORWARD_WINDOW_BATCHES;

use super::*;
use crate::limits::PROPOSER_QUEUE_MAX;
use crate::node::delivery::outbox::{self, Inbox, Message, Outbox};
use crate::peer_support::{PATIENCE, Service, listen_anywhere, pool};

const ME: NodeId = NodeId(1);
const LEADER: NodeId = NodeId(2);
/// Term in which the scripted node leads.
const TERM: u64 = 3;

/// An intake, with the senders of its inputs.
struct Fed {
    intake: Intake,
    submit: mpsc::Sender<Submission>,
    queue: mpsc::Sender<TermBatch>,
    leads: watch::Sender<Leadership>,
}

/// Creates the intake of a node that finds node 2 at address `leader`.
fn fed(leader: &str) -> Fed {
    let (submit, submissions) = mpsc::channel(PROPOSER_QUEUE_MAX);
    let (queue, batches) = mpsc::channel(64);
    let (leads, leadership) = watch::channel(Leadership::default());
    let (pending, metrics) = (Arc::new(PendingWrites::new(ME, 7)), Arc::default());
    let intake = Intake::new(ME, (submissions, batches), leadership, pending, pool(leader), metrics);
    Fed { intake, submit, queue, leads }
}

fn intake() -> Intake {
    fed("127.0.0.1:1").intake
}

/// Registers two batches of one write each. Returns them and their inboxes.
fn two(intake: &Intake) -> (Vec<Vec<Proposal>>, Vec<Inbox>) {
    let one = |number| {
        let (reply_to, inbox) = outbox::channel();
        let proposal = Proposal {
            origin: intake.pending.register(reply_to, number, 100, time::now()),
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

fn requests(intake: &Intake) -> Vec<u64> {
    intake.line.iter().map(|proposal| proposal.origin.request).collect()
}

fn heard(waiting: &mut [Inbox]) -> Vec<bool> {
    let is_lost = |inbox: &mut Inbox| {
        let mut messages = VecDeque::new();
        inbox.take(&mut messages).is_ok() && matches!(messages.pop_front(), Some(Message::Lost))
    };
    waiting.iter_mut().map(is_lost).collect()
}

/// Returns the pause before the next try.
fn pause(intake: &Intake) -> Duration {
    let LeaderRoute::Nowhere { retry_at: Some(at) } = intake.route else { panic!("it has a way") };
    at.saturating_since(time::now())
}

#[tokio::test]
async fn writes_that_the_leader_may_have_are_given_up_and_never_sent_again() {
    let mut intake = intake();
    let (mut unknown, mut waiting) = two(&intake);
    // The first batch left, and its acknowledgement did not come.
    intake.line.extend(unknown.split_off(1).concat());
    intake.on_event(lost(unknown));
    assert!(pause(&intake) <= RETRY && intake.line.is_empty());
    assert_eq!(heard(&mut waiting), [true, true], "nor the second, which would overtake it");
    assert!(intake.pending.is_empty());
    let mistake = mutant::AVAILABLE.then(|| mutant::with(Some(Mutant::ForwardAgain.into())));
    if mistake.is_some() {
        let (mut unknown, _waiting) = two(&intake);
        intake.line.extend(unknown.split_off(1).concat());
        intake.on_event(lost(unknown));
        assert_eq!(requests(&intake), [3, 4], "the mistake would be seen here");
    }
}

/// A follower that queues writes for lack of a leader may receive a snapshot (seed 501,935).
#[tokio::test]
async fn writes_for_which_no_client_waits_any_more_are_dropped_before_the_next_leader() {
    let mut intake = intake();
    let (before, mut waiting) = two(&intake);
    intake.line.extend(before.concat());
    intake.pending.abandon_all();
    let (since, mut others) = two(&intake);
    intake.line.extend(since.concat());
    intake.leader_changed();
    assert_eq!(requests(&intake), [3, 4]);
    assert_eq!((heard(&mut waiting), heard(&mut others)), (vec![true; 2], vec![false; 2]));
    intake.pending.abandon_all();
    intake.leader_changed();
    assert!(intake.line.is_empty());
}

#[tokio::test]
async fn writes_that_the_leader_has_not_taken_go_on_in_their_order() {
    let mut intake = intake();
    let (refused, mut waiting) = two(&intake);
    let (later, _also) = two(&intake);
    intake.line.extend(later.concat());
    intake.on_event(ForwardEvent::Refused { untaken: refused, refusal: Refusal::NotServing });
    assert!(pause(&intake) > RETRY, "another leader is to be heard of");
    assert_eq!(requests(&intake), [1, 2, 3, 4]);
    assert_eq!(heard(&mut waiting), [false, false]);
    assert_eq!(intake.pending.len(), 4);
    intake.on_event(lost(Vec::new()));
    assert_eq!(requests(&intake), [1, 2, 3, 4], "nothing was on the way");
}

#[tokio::test]
async fn what_other_nodes_proposed_is_for_the_term_of_this_leader_only() {
    let Fed { mut intake, queue, leads, .. } = fed("127.0.0.1:1");
    let view = Leadership { term: 3, leader: Some(ME), ready: true };
    let foreign = |request| {
        let proposal = crate::peer_support::proposal(request);
        Proposal { origin: Origin { node: LEADER, ..proposal.origin }, ..proposal }
    };
    let offer = |term, request| queue.try_send(TermBatch { term, proposals: vec![foreign(request)] });
    offer(3, 1).expect("is queued");
    intake.fill();
    assert!(requests(&intake).is_empty() && queue.capacity() == 63, "no leader is known: nothing is taken");
    leads.send(view);
    offer(2, 2).expect("is queued");
    // The batch arrives before the task has read the leadership.
    intake.route = LeaderRoute::Here;
    intake.fill();
    assert_eq!(requests(&intake), [1], "that of the earlier term was dropped");
    let (own, mut waiting) = two(&intake);
    intake.line.extend(own.concat());
    leads.send(Leadership { term: 4, leader: Some(LEADER), ready: false });
    intake.follow();
    assert_eq!(requests(&intake), [1, 2], "the writes of this node's own clients, and no others");
    assert_eq!(heard(&mut waiting), [false, false]);
}

#[tokio::test]
async fn the_way_is_renewed_when_the_same_leader_leads_a_new_term() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let Fed { mut intake, leads, .. } = fed(&node.address);
    leads.send(Leadership { term: TERM - 1, leader: Some(LEADER), ready: false });
    intake.turn();
    let (batches, _waiting) = two(&intake);
    intake.line.extend(batches.concat());
    leads.send(Leadership { term: TERM, leader: Some(LEADER), ready: false });
    let all_taken = async {
        while service.script.lock().forwarded.len() < 2 {
            intake.turn();
            let event = next_event(&mut intake.route).await;
            assert_eq!(event, ForwardEvent::Moved, "it is a link to the leader of this term");
        }
    };
    time::timeout(PATIENCE, all_taken).await.expect("the leader of the new term has them");
}

#[tokio::test]
async fn what_found_no_room_on_the_link_leaves_when_there_is_some() {
    let service = Service::new();
    service.gate.send(false);
    let node = listen_anywhere(service.clone()).await;
    let Fed { mut intake, leads, .. } = fed(&node.address);
    leads.send(Leadership { term: TERM, leader: Some(LEADER), ready: false });
    intake.turn();
    let mut waiting = Vec::new();
    while waiting.len() <= 2 * PEER_FORWARD_WINDOW_BATCHES {
        let (batches, inboxes) = two(&intake);
        waiting.extend(inboxes);
        for batch in batches {
            intake.line.extend(batch);
            intake.turn();
        }
        if waiting.len() == 2 {
            assert_eq!(next_event(&mut intake.route).await, ForwardEvent::Moved, "it has dialed");
        }
    }
    assert!(intake.line.len() > PEER_FORWARD_WINDOW_BATCHES / 2, "the window is full");
    service.gate.send(true);
    let all_taken = async {
        while service.script.lock().forwarded.len() < waiting.len() {
            let event = next_event(&mut intake.route).await;
            assert_eq!(event, ForwardEvent::Moved);
            intake.on_event(event);
            intake.turn();
        }
    };
    time::timeout(PATIENCE, all_taken).await.expect("all leave");
    assert_eq!(service.script.lock().forwarded, (1..=waiting.len() as u64).collect::<Vec<_>>());
}

fn set(by: &Outbox, session: i64, data: &Bytes) -> Submission {
    let data = Some(data.clone());
    let set = SetData { path: "/x".to_owned(), data, version: Version::ANY };
    Submission {
        session: SessionId(session),
        attachment: Attachment(1),
        identities: Default::default(),
        command: Command::Client(Request::SetData(set)),
        reply_to: by.clone(),
        tag: 0,
        received: time::now(),
    }
}

/// The client repeats the lost write and all later ones, in order.
#[tokio::test]
async fn a_connection_that_has_lost_a_write_has_no_later_one_done() {
    let Fed { mut intake, submit, .. } = fed("127.0.0.1:1");
    let (of_one, of_other) = (outbox::channel(), outbox::channel());
    assert!(submit.try_send(set(&of_one.0, 1, &Bytes::new())).is_ok());
    assert!(submit.try_send(set(&of_other.0, 2, &Bytes::new())).is_ok());
    of_one.0.push(Message::Lost);
    let room = intake.pending.room_now().expect("nothing is under way");
    assert!(intake.gather(room));
    let sessions: Vec<SessionId> = intake.line.iter().map(|proposal| proposal.session).collect();
    assert_eq!((sessions, intake.pending.len()), (vec![SessionId(2)], 1));
}

/// Returns the number of the batch, from 1 on, that carries a quiet client's write queued after those of the
/// others.
fn batch_of_the_quiet_one(others: i64, each: usize, bytes: usize) -> usize {
    const QUIET: SessionId = SessionId(0);
    let Fed { mut intake, submit, .. } = fed("127.0.0.1:1");
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
        let room = intake.pending.room_now().expect("all has been answered");
        intake.gather(room);
        let proposals = intake.line.take();
        let sum: usize = proposals.iter().map(weight).sum();
        assert!((1..=BATCH_MAX_COMMANDS).contains(&proposals.len()) && sum <= BATCH_MAX_BYTES, "{sum}");
        if proposals.iter().any(|proposal| proposal.session == QUIET) {
            return batch;
        }
        intake.pending.abandon_all();
    }
    unreachable!("it is in one of them")
}

#[tokio::test]
async fn a_quiet_clients_write_is_in_the_next_batch_whatever_others_submit() {
    assert_eq!(batch_of_the_quiet_one(30, 34, 10), 1, "behind 1,020 small ones");
    assert_eq!(batch_of_the_quiet_one(8, 60, 900_000), 1, "behind 480 large ones");
    assert_eq!(batch_of_the_quiet_one(1, 1_000, 100_000), 1, "behind one that sends much");
}

#[tokio::test]
async fn writes_beyond_the_window_wait_until_others_are_answered() {
    let Fed { mut intake, submit, .. } = fed("127.0.0.1:1");
    let (outbox, _inbox) = outbox::channel();
    for _ in 0..PROPOSER_QUEUE_MAX {
        assert!(submit.try_send(set(&outbox, 1, &Bytes::new())).is_ok());
    }
    while let Some(room) = intake.pending.room_now() {
        assert!(intake.gather(room));
        intake.line.take();
    }
    assert_eq!(intake.pending.len(), BATCH_MAX_COMMANDS, "the window at the beginning");
    assert_eq!(intake.submissions.waiting.len(), PROPOSER_QUEUE_MAX - BATCH_MAX_COMMANDS);
    intake.pending.abandon_all();
    assert!(intake.pending.room_now().is_some());
}

#[tokio::test]
async fn a_quiet_clients_write_goes_while_large_ones_fill_the_window() {
    let Fed { mut intake, submit, .. } = fed("127.0.0.1:1");
    let (large, (quiet, _inbox)) = (Bytes::from(vec![0; 900_000]), outbox::channel());
    let others = [1, 2, 3, 4].map(|session| (session, outbox::channel()));
    for (session, (outbox, _)) in &others {
        assert!(submit.try_send(set(outbox, *session, &large)).is_ok());
    }
    while let Some(room) = intake.pending.room_now().filter(|room| intake.gather(*room)) {
        assert!(room.takes_larger);
        intake.line.take();
    }
    assert_eq!(intake.pending.len(), 2, "they fill the window");
    for nth in 1..=3 {
        assert!(submit.try_send(set(&quiet, 0, &Bytes::new())).is_ok());
        let room = intake.pending.room_now().expect("for small ones");
        assert!(intake.gather(room) && intake.pending.len() == 2 + nth);
        assert_eq!(intake.line.take().len(), 1);
    }
    intake.pending.abandon_all();
    let room = intake.pending.room_now().expect("nothing is under way");
    assert!(intake.gather(room) && intake.line.iter().all(|proposal| proposal.session.0 > 2));
}

/// Other nodes and the leader's own clients fill the leader's queue as fast as it drains.
#[tokio::test]
async fn a_leaders_own_clients_and_other_nodes_take_turns() {
    let Fed { mut intake, submit, queue, leads, .. } = fed("127.0.0.1:1");
    leads.send(Leadership { term: 3, leader: Some(ME), ready: true });
    intake.follow();
    let (outbox, mut inbox) = outbox::channel();
    let (mut own, mut foreign) = (0, 0);
    for _ in 0..8 {
        while submit.try_send(set(&outbox, 1, &Bytes::new())).is_ok() {}
        let batch = || TermBatch { term: 3, proposals: vec![crate::peer_support::proposal(9_999); 10] };
        while queue.try_send(batch()).is_ok() {}
        intake.fill();
        let taken = intake.line.take();
        assert_eq!(taken.len(), BATCH_MAX_COMMANDS);
        for mut proposal in taken {
            if proposal.session == SessionId(1) {
                let applied = Applied { zxid: Zxid(1), result: Err(ErrorCode::NoNode), attached: None };
                let (times, now) = (EntryTimes::default().take(1, time::now()), time::now());
                intake.pending.answer(applied, &mut proposal, (times, now));
                own += 1;
            } else {
                foreign += 1;
            }
        }
        inbox.take(&mut VecDeque::new()).expect("it does not overflow");
    }
    assert!(own.min(foreign) >= 3 * BATCH_MAX_COMMANDS, "{own} of its own, {foreign} of others");
}

#[tokio::test]
async fn ready_tasks_run_first() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let others: Vec<_> = (1..=3)
        .map(|n| {
            let order = order.clone();
            rowlock_env::task::spawn("other", async move { order.lock().push(n) })
        })
        .collect();
    yield_to_ready().await;
    order.lock().push(4);
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(*order.lock(), [1, 2, 3, 4]);
}
