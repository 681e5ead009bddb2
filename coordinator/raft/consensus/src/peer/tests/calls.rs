//! Questions and answers.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{self, BoxFuture};
use rowlock_env::net::Listener;
use rowlock_env::task::{self, Shutdown, TaskGroup};
use rowlock_env::time;
use rowlock_metrics::memory::Tally;
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::Attachment;
use rowlock_transport::handshake;

use super::support::{PATIENCE, Raw, Service, identity, listen, listen_anywhere, no_raft, pool, welcome};
use crate::peer::message::ClientDisconnect;
use crate::peer::{Lane, PeerError, PeerPool, Refusal, Request, Response};

type Answer = Result<Response, PeerError>;

async fn ask(pool: &PeerPool, request: &Request) -> Answer {
    pool.call(NodeId(2), Lane::Control, request, time::now() + PATIENCE).await
}

/// A call that is queued, and whose answer is yet to be waited for.
async fn begun(pool: &PeerPool, request: Request) -> BoxFuture<'static, Answer> {
    let pool = pool.clone();
    let mut call = async move { ask(&pool, &request).await }.boxed();
    assert!(futures_util::poll!(&mut call).is_pending(), "it is queued, and not answered");
    call
}

#[tokio::test]
async fn every_request_gets_its_own_answer() {
    let node = listen_anywhere(Service::new()).await;
    let pool = pool(&node.address);
    let calls = (0..500).map(|_| ask(&pool, &Request::ReadIndex));
    let mut indexes = BTreeSet::new();
    for answer in future::join_all(calls).await {
        let Ok(Response::ReadIndex { index }) = answer else { panic!("no index: {answer:?}") };
        indexes.insert(index);
    }
    assert_eq!(indexes.len(), 500, "each was asked once and got another answer");
}

#[tokio::test]
async fn touches_are_noted_by_the_leader_of_the_term_only() {
    let node = listen_anywhere(Service::new()).await;
    let pool = pool(&node.address);
    let touches =
        |term| Request::Touches { sessions: vec![SessionId(1), SessionId(2)], term, is_short: false };
    let noted = Response::TouchesNoted { refused: vec![SessionId(2)], invites_per_second: 50 };
    assert_eq!(ask(&pool, &touches(3)).await, Ok(noted));
    let refusal = Refusal::NotLeader { leader: Some(NodeId(9)) };
    assert_eq!(ask(&pool, &touches(4)).await, Ok(Response::Refused(refusal)));
}

#[tokio::test]
async fn hang_ups_are_noted_by_the_leader_of_the_term_only() {
    let node = listen_anywhere(Service::new()).await;
    let pool = pool(&node.address);
    let disconnect = ClientDisconnect { session: SessionId(1), attachment: Attachment(2), grace_ms: 500 };
    let disconnects = |term| Request::ClientDisconnects { disconnects: vec![disconnect], term };
    assert_eq!(ask(&pool, &disconnects(3)).await, Ok(Response::ClientDisconnectsNoted));
    let refusal = Refusal::NotLeader { leader: Some(NodeId(9)) };
    assert_eq!(ask(&pool, &disconnects(4)).await, Ok(Response::Refused(refusal)));
}

#[tokio::test]
async fn what_waits_for_a_node_is_counted_until_it_has_left() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let tally = Tally::default();
    let tasks = TaskGroup::new(Shutdown::new());
    let pool = PeerPool::new(identity(1), tasks).counted_in(tally.clone());
    pool.set_address(NodeId(2), &node.address);
    ask(&pool, &Request::ReadIndex).await.expect("connects");
    let before = tally.bytes();
    let sessions: Vec<SessionId> = (0..100_000).map(|n| SessionId(i64::MAX - n)).collect();
    let touches = Request::Touches { sessions, term: 3, is_short: false };
    let bytes = touches.encode().len() as u64;
    let pending = begun(&pool, touches).await;
    assert!(tally.bytes() >= before + bytes, "{} of {before}", tally.bytes());
    pending.await.expect("an answer");
    pool.remove(NodeId(2));
    let gone = async {
        while tally.bytes() != 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    time::timeout(PATIENCE, gone).await.expect("nothing is held for a connection that has ended");
}

#[tokio::test]
async fn an_answer_overtakes_one_that_takes_longer() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    service.gate.send(false);
    let slow = begun(&pool, Request::Status).await;
    assert_eq!(ask(&pool, &Request::ReadIndex).await, Ok(Response::ReadIndex { index: 1 }));
    service.gate.send(true);
    assert!(matches!(slow.await, Ok(Response::Status(_))));
}

#[tokio::test]
async fn a_hanging_peer_times_out_and_keeps_the_connection() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    ask(&pool, &Request::ReadIndex).await.expect("connects");
    service.gate.send(false);
    let begun = time::now();
    let deadline = begun + Duration::from_millis(50);
    let error = pool.call(NodeId(2), Lane::Control, &Request::Status, deadline).await.expect_err("hangs");
    assert_eq!(error, PeerError::Timeout { node: NodeId(2) });
    assert!(error.may_have_happened());
    assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < PATIENCE);
    assert!(pool.peer(NodeId(2)).expect("known").is_connected(Lane::Control));
    assert_eq!(ask(&pool, &Request::ReadIndex).await, Ok(Response::ReadIndex { index: 2 }));
}

#[tokio::test]
async fn unsent_requests_differ_from_unknown_outcomes() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().to_string();
    drop(listener);
    let pool = pool(&address);
    let error = ask(&pool, &Request::ReadIndex).await.expect_err("nobody listens");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    assert!(!error.may_have_happened());
    let unknown = pool.call(NodeId(7), Lane::Control, &Request::ReadIndex, time::now() + PATIENCE).await;
    assert_eq!(unknown, Err(PeerError::UnknownNode { node: NodeId(7) }));
}

#[tokio::test]
async fn a_deadline_while_dialing_means_that_nothing_was_sent() {
    // Accepts in the kernel, never shakes hands.
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    let deadline = time::now() + Duration::from_millis(50);
    let error = pool.call(NodeId(2), Lane::Control, &Request::ReadIndex, deadline).await.expect_err("hangs");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    drop(listener);
}

#[tokio::test]
async fn calls_get_through_again_after_the_other_side_has_restarted() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let pool = pool(&node.address);
    ask(&pool, &Request::ReadIndex).await.expect("answers");
    service.gate.send(false);
    let waiting = begun(&pool, Request::Status).await;
    // Behind it on the same connection: when this is answered, the one before has arrived.
    ask(&pool, &Request::ReadIndex).await.expect("answers");
    node.tasks.stop().await;
    let lost = waiting.await.expect_err("broke");
    assert!(matches!(lost, PeerError::Lost { .. }) && lost.may_have_happened(), "{lost}");
    ask(&pool, &Request::ReadIndex).await.expect_err("nobody listens");
    let again = listen(&node.address, no_raft(), service).await;
    let answered = async { while ask(&pool, &Request::ReadIndex).await.is_err() {} };
    time::timeout(PATIENCE, answered).await.expect("reconnects");
    again.tasks.stop().await;
}

#[tokio::test]
async fn a_side_that_has_gone_silent_is_given_up() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
    let pool = pool(&listener.local_addr().to_string());
    let _hung = task::spawn("hung-node", async move {
        let mut raw = Raw::on(listener.accept().await);
        raw.receive().await.expect("a hello");
        raw.send(0, &handshake::encode_verdict(&Ok(welcome(2)))).await;
        std::future::pending::<()>().await;
    });
    let error = ask(&pool, &Request::ReadIndex).await.expect_err("never answers");
    assert!(matches!(error, PeerError::Lost { .. }), "before the call's own deadline: {error}");
}

#[tokio::test]
async fn calls_end_when_this_node_stops() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let tasks = task::TaskGroup::new(task::Shutdown::new());
    let pool = PeerPool::new(super::support::identity(1), tasks.clone());
    pool.set_address(NodeId(2), &node.address);
    service.gate.send(false);
    let waiting = begun(&pool, Request::Status).await;
    tasks.stop().await;
    assert_eq!(waiting.await, Err(PeerError::Stopping));
}

#[tokio::test]
async fn the_end_of_a_connection_is_told_with_its_node_and_lane() {
    let service = Service::new();
    let node = listen_anywhere(service.clone()).await;
    let tasks = task::TaskGroup::new(task::Shutdown::new());
    let pool = PeerPool::new(super::support::identity(1), tasks.clone());
    pool.set_address(NodeId(2), &node.address);
    ask(&pool, &Request::ReadIndex).await.expect("answers");
    assert_eq!(service.script.lock().peer_disconnected, []);
    tasks.stop().await;
    let told = async {
        while service.script.lock().peer_disconnected.is_empty() {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(PATIENCE, told).await.expect("is told");
    assert_eq!(service.script.lock().peer_disconnected, [(NodeId(1), Lane::Control)]);
}
