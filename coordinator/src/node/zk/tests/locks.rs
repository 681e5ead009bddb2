//! Tests of lock requests: the frames and log entries of each step, and the receivers of notices.

use rowlock_env::time;
use rowlock_proto::lock::{Acquire, Claim, NoticeEvent, QueuePosition, SessionOptions};
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{ErrorCode, Request};

use super::client::{Client, connect_request};
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
