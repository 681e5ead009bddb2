//! Tests of lock requests: the frames and log entries of each step, and the receivers of notices.

use rowlock_env::time;
use rowlock_proto::lock::{Acquire, Ask, Claim, Notice, NoticeEvent, QueuePosition, SessionOptions};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, FencingToken, Request, Xid, Zxid};

use super::client::{Client, Frame, connect_request, delete, unwatched};
use super::node::Node;

const LOCK: &str = "/locks/a";

/// Builds an exclusive request for [`LOCK`].
pub fn acquire(prefix: &str) -> Acquire {
    Acquire::exclusive(LOCK, prefix)
}

fn position(response: Result<Response, ErrorCode>) -> QueuePosition {
    match response {
        Ok(Response::QueuePositions(positions)) if positions.len() == 1 => positions[0].clone(),
        other => panic!("one position was expected: {other:?}"),
    }
}

async fn hold(client: &mut Client, prefix: &str) -> Claim {
    match position(client.call(Request::Acquire([acquire(prefix)].into())).await) {
        QueuePosition::Held(claim) => claim,
        other => panic!("it is free: {other:?}"),
    }
}

async fn wait(client: &mut Client, prefix: &str) -> Claim {
    match position(client.call(Request::Acquire([acquire(prefix)].into())).await) {
        QueuePosition::Waiting { claim, .. } => claim,
        other => panic!("it is held: {other:?}"),
    }
}

async fn release(client: &mut Client, claim: &Claim) {
    let released = client.call(Request::Release([claim.clone()].into())).await;
    assert_eq!(released, Ok(Response::Held(vec![true].into())));
}

/// Returns the frames sent, changes, notices and watches fired so far.
fn counts(node: &Node) -> [u64; 4] {
    let metrics = &node.context.metrics;
    let zxid = node.context.replica.state.read().last_zxid();
    [
        metrics.packets_sent_total.get(),
        zxid.0 as u64,
        metrics.lock_notices_total.get(),
        metrics.watch_fired_total.get(),
    ]
}

fn since(node: &Node, before: [u64; 4]) -> [u64; 4] {
    let now = counts(node);
    std::array::from_fn(|i| now[i] - before[i])
}

#[tokio::test]
async fn an_uncontended_acquire_and_release_is_two_commits_and_two_frames_each_way() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let received = node.context.metrics.packets_received_total.get();
    let before = counts(&node);
    let claim = hold(&mut client, "a-lock-").await;
    release(&mut client, &claim).await;
    assert_eq!(since(&node, before), [2, 2, 0, 0]);
    assert_eq!(node.context.metrics.packets_received_total.get() - received, 2);
    assert_eq!(claim.token, FencingToken(before[1] as i64 + 1));
    node.stop().await;
}

#[tokio::test]
async fn a_holder_that_was_asked_while_it_was_cut_off_is_told_when_it_comes_back() {
    let node = Node::start().await;
    let (mut holder, mut other) = (Client::connect(&node).await, Client::connect(&node).await);
    let held = hold(&mut holder, "a-lock-").await;
    let opened = holder.opened.clone();
    drop(holder);
    let reason = "deploy".to_owned();
    let ask = Ask { lock: LOCK.to_owned(), reason, by: String::new(), within_ms: 0 };
    other.call(Request::Ask(ask)).await.unwrap();
    let mut holder = Client::open(&node, connect_request(Some(&opened))).await.unwrap();
    let (_, notice) = holder.notice().await;
    assert_eq!(notice.claim, held);
    assert!(matches!(notice.event, NoticeEvent::Asked(question) if question.reason == "deploy"));
    node.stop().await;
}

#[tokio::test]
async fn a_hand_over_is_one_commit_one_reply_and_one_notice() {
    let node = Node::start().await;
    let (mut holder, mut waiter) = (Client::connect(&node).await, Client::connect(&node).await);
    let held = hold(&mut holder, "a-lock-").await;
    let claim = wait(&mut waiter, "b-lock-").await;
    let before = counts(&node);
    release(&mut holder, &held).await;
    let (zxid, notice) = waiter.notice().await;
    assert_eq!(notice, Notice { claim: claim.clone(), event: NoticeEvent::Granted });
    assert_eq!(zxid, Zxid(before[1] as i64 + 1));
    assert_eq!(since(&node, before), [2, 1, 1, 0]);
    assert!(claim.token > held.token);
    release(&mut waiter, &claim).await;
    node.stop().await;
}

#[tokio::test]
async fn one_wake_with_a_thousand_waiters() {
    let node = Node::start().await;
    let mut holder = Client::connect(&node).await;
    let held = hold(&mut holder, "holder-lock-").await;
    let mut waiters = Vec::new();
    for i in 0..20 {
        let mut waiter = Client::connect(&node).await;
        for j in 0..50 {
            waiter.send(Request::Acquire([acquire(&format!("{i}-{j}-lock-"))].into())).await;
        }
        for _ in 0..50 {
            assert!(matches!(position(waiter.reply().await.1), QueuePosition::Waiting { .. }));
        }
        waiters.push(waiter);
    }
    let before = counts(&node);
    release(&mut holder, &held).await;
    let (_, notice) = waiters[0].notice().await;
    assert_eq!(notice.event, NoticeEvent::Granted);
    for waiter in &mut waiters {
        // Any other frame would arrive before the reply.
        assert_eq!(waiter.call(Request::Ping).await, Ok(Response::Empty));
    }
    assert_eq!(since(&node, before), [22, 1, 1, 0]);
    node.stop().await;
}

#[tokio::test]
async fn losses_by_others_are_told_with_their_cause() {
    let node = Node::start().await;
    let (mut holder, mut other) = (Client::connect(&node).await, Client::connect(&node).await);
    let deleted = hold(&mut holder, "a-lock-").await;
    other.call(delete(&deleted.path)).await.unwrap();
    assert_eq!(holder.notice().await.1, Notice { claim: deleted, event: NoticeEvent::Deleted });
    let forced = hold(&mut holder, "b-lock-").await;
    let answer = other.call(Request::ForceRelease(forced.clone())).await;
    assert_eq!(answer, Ok(Response::Held(vec![true].into())));
    assert_eq!(holder.notice().await.1, Notice { claim: forced, event: NoticeEvent::Forced });
    node.stop().await;
}

#[tokio::test]
async fn a_place_of_a_plain_client_hears_of_its_turn_by_its_watch_alone() {
    let node = Node::start().await;
    let (mut holder, mut plain) = (Client::connect(&node).await, Client::connect(&node).await);
    let held = hold(&mut holder, "a-lock-").await;
    let path = format!("{LOCK}/p-lock-");
    let mode = rowlock_proto::CreateMode::EphemeralSequential;
    plain.call(super::client::create(&path, mode)).await.unwrap();
    plain.call(Request::Exists(super::client::watched(&held.path))).await.unwrap();
    let before = counts(&node);
    release(&mut holder, &held).await;
    assert_eq!(plain.event().await, (rowlock_proto::EventType::NodeDeleted, held.path.to_string()));
    assert_eq!(since(&node, before), [2, 1, 0, 1]);
    node.stop().await;
}

#[tokio::test]
async fn a_grant_goes_to_the_connection_that_the_session_has_now() {
    let node = Node::start().await;
    let (mut holder, mut old) = (Client::connect(&node).await, Client::connect(&node).await);
    let held = hold(&mut holder, "a-lock-").await;
    let claim = wait(&mut old, "b-lock-").await;
    let mut new = Client::open(&node, connect_request(Some(&old.opened))).await.unwrap();
    release(&mut holder, &held).await;
    assert_eq!(new.notice().await.1, Notice { claim: claim.clone(), event: NoticeEvent::Granted });
    // The client repeats its request to find a missed notice.
    let again = position(new.call(Request::Acquire([acquire("b-lock-")].into())).await);
    assert_eq!(again, QueuePosition::Held(claim));
    old.send(Request::Ping).await;
    old.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn a_tagged_acquire_that_is_sent_again_on_another_connection_takes_one_place() {
    let node = Node::start().await;
    let mut first = Client::connect(&node).await;
    let tagged = || Request::Tagged {
        id: 1,
        acked: 0,
        request: Box::new(Request::Acquire([acquire("a-lock-")].into())),
    };
    let held = position(first.call(tagged()).await);
    let mut second = Client::open(&node, connect_request(Some(&first.opened))).await.unwrap();
    assert_eq!(position(second.call(tagged()).await), held);
    let children = second.call(Request::GetChildren(unwatched(LOCK))).await;
    assert!(matches!(children, Ok(Response::Children(names)) if names.len() == 1));
    node.stop().await;
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_when_its_holder_hung_up_and_the_grace_is_over() {
    let node = Node::start().await;
    let request = ConnectRequest { timeout_ms: 40_000, ..connect_request(None) };
    let mut holder = Client::open(&node, request).await.unwrap();
    let options = SessionOptions { disconnect_grace_ms: 200 };
    holder.call(Request::SessionOptions(options)).await.unwrap();
    hold(&mut holder, "a-lock-").await;
    let mut waiter = Client::connect(&node).await;
    wait(&mut waiter, "b-lock-").await;
    let hung_up = time::now();
    drop(holder);
    assert_eq!(waiter.notice().await.1.event, NoticeEvent::Granted);
    assert!(hung_up.elapsed() >= std::time::Duration::from_millis(200));
    node.stop().await;
}

#[tokio::test]
async fn a_read_that_shows_a_grant_comes_behind_its_notice() {
    let node = Node::start().await;
    let (mut holder, mut waiter) = (Client::connect(&node).await, Client::connect(&node).await);
    let held = hold(&mut holder, "a-lock-").await;
    wait(&mut waiter, "b-lock-").await;
    release(&mut holder, &held).await;
    let xid = waiter.send(Request::GetChildren(unwatched(LOCK))).await;
    assert!(matches!(waiter.next().await, Frame::Notice(..)));
    let (header, answer) = waiter.reply().await;
    assert_eq!(header.xid, xid);
    assert!(matches!(answer, Ok(Response::Children(names)) if names.len() == 1));
    node.stop().await;
}

#[tokio::test]
async fn an_envelope_around_what_is_no_write_is_refused() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    for request in [Request::WhoAmI, Request::CloseSession, Request::Sync("/".to_owned())] {
        let tagged = Request::Tagged { id: 1, acked: 0, request: Box::new(request) };
        assert_eq!(client.call(tagged).await, Err(ErrorCode::MarshallingError));
    }
    assert_eq!(client.send(Request::WhoAmI).await, Xid(4));
    assert!(client.reply().await.1.is_ok());
    node.stop().await;
}
