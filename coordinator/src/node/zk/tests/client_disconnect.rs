//! Tests of session timers: requests restart them, and clients that hang up shorten them if they asked for a
//! disconnect grace.

use std::time::Duration;

use rowlock_env::time;
use rowlock_proto::lock::SessionOptions;
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, EventType, Request, SessionId};

use super::client::{Client, connect_request, create, unwatched, watched};
use super::node::{Node, config};
use crate::limits;

/// Longer than any test waits.
const TIMEOUT_MS: i32 = 40_000;

async fn connect(node: &Node) -> Client {
    let request = ConnectRequest { timeout_ms: TIMEOUT_MS, ..connect_request(None) };
    Client::open(node, request).await.expect("a session")
}

fn options(disconnect_grace_ms: u32) -> Request {
    Request::SessionOptions(SessionOptions { disconnect_grace_ms })
}

/// Returns the sessions that end within 20 s without further keepalives, once the node has noticed that all
/// but `left` connections are closed.
async fn due_soon(node: &Node, left: usize, pinging: &mut Client) -> Vec<SessionId> {
    while node.context.registry.len() > left {
        tokio::task::yield_now().await;
    }
    // The ping reaches the leader after the reports of the hang-ups.
    assert_eq!(pinging.call(Request::Ping).await, Ok(Response::Empty));
    let (_, due) = node.expiry_table.due(time::now() + Duration::from_secs(20)).expect("it leads");
    due.into_iter().map(|(session, _)| session).collect()
}

/// Returns whether a read by a new session, and then perhaps its hang-up, restarted the session's timer.
async fn restarts(pause: Duration, hangs_up: bool) -> bool {
    let node = Node::start().await;
    let mut witness = connect(&node).await;
    let mut client = connect(&node).await;
    let opened = time::now();
    time::sleep(pause).await;
    client.call(Request::Exists(unwatched("/none"))).await.unwrap_err();
    let session = client.opened.session_id;
    let client = (!hangs_up).then_some(client);
    while node.context.registry.len() > 1 + usize::from(client.is_some()) {
        tokio::task::yield_now().await;
    }
    // The ping reaches the leader after the keepalive of the read.
    assert_eq!(witness.call(Request::Ping).await, Ok(Response::Empty));
    let timeout = Duration::from_millis(TIMEOUT_MS as u64);
    let (_, due) = node.expiry_table.due(opened + timeout).expect("it leads");
    drop(client);
    node.stop().await;
    due.iter().all(|(due, _)| *due != session)
}

#[tokio::test]
async fn a_request_is_a_keepalive_even_if_it_is_the_last_one_of_its_connection() {
    let longer_than_a_keepalive_is_kept_back = Duration::from_millis(150);
    assert!(restarts(longer_than_a_keepalive_is_kept_back, false).await, "a request alone");
    assert!(restarts(Duration::ZERO, true).await, "a request right before the hang-up");
}

#[tokio::test]
async fn a_client_that_hangs_up_loses_its_ephemerals_after_its_grace() {
    let node = Node::start().await;
    let mut client = connect(&node).await;
    let mut witness = connect(&node).await;
    assert_eq!(client.call(options(150)).await, Ok(Response::Empty));
    client.call(create("/e", CreateMode::Ephemeral)).await.unwrap();
    witness.call(Request::Exists(watched("/e"))).await.unwrap();
    let hung_up = time::now();
    drop(client);
    assert_eq!(witness.event().await, (EventType::NodeDeleted, "/e".to_owned()));
    assert!(hung_up.elapsed() >= Duration::from_millis(150));
    node.stop().await;
}

#[tokio::test]
async fn a_return_within_the_grace_restores_the_whole_timeout() {
    let node = Node::start().await;
    let mut client = connect(&node).await;
    client.call(options(5_000)).await.unwrap();
    let again = ConnectRequest { timeout_ms: TIMEOUT_MS, ..connect_request(Some(&client.opened)) };
    drop(client);
    let mut client = Client::open(&node, again).await.unwrap();
    assert_eq!(due_soon(&node, 1, &mut client).await, []);
    node.stop().await;
}

#[tokio::test]
async fn a_hang_up_shortens_nothing_without_a_grace() {
    let node = Node::start().await;
    let mut witness = connect(&node).await;
    let mut taken_back = connect(&node).await;
    taken_back.call(options(500)).await.unwrap();
    taken_back.call(options(0)).await.unwrap();
    let mut as_long_as_the_timeout = connect(&node).await;
    as_long_as_the_timeout.call(options(TIMEOUT_MS as u32)).await.unwrap();
    let mut asked = connect(&node).await;
    asked.call(options(10_000)).await.unwrap();
    let session = asked.opened.session_id;
    let silent = connect(&node).await;
    drop((silent, taken_back, as_long_as_the_timeout, asked));
    assert_eq!(due_soon(&node, 1, &mut witness).await, [session]);
    node.stop().await;
}

#[tokio::test]
async fn a_connection_that_the_node_closes_shortens_nothing() {
    let node = Node::start().await;
    let mut client = connect(&node).await;
    client.call(options(500)).await.unwrap();
    node.stop_serving();
    client.closed().await;
    node.serve_again();
    let mut witness = connect(&node).await;
    assert_eq!(due_soon(&node, 1, &mut witness).await, []);
    node.stop().await;
}

#[tokio::test]
async fn a_moved_session_ignores_the_end_of_its_old_connection() {
    let node = Node::start().await;
    let mut old = connect(&node).await;
    old.call(options(500)).await.unwrap();
    let again = ConnectRequest { timeout_ms: TIMEOUT_MS, ..connect_request(Some(&old.opened)) };
    let mut new = Client::open(&node, again).await.unwrap();
    drop(old);
    assert_eq!(due_soon(&node, 1, &mut new).await, []);
    node.stop().await;
}

#[tokio::test]
async fn a_read_only_connection_has_no_options() {
    let mut config = config();
    config.client.read_only_mode = true;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    node.stop_serving();
    let request = ConnectRequest { read_only: Some(true), ..connect_request(None) };
    let mut client = Client::open(&node, request).await.unwrap();
    assert_eq!(client.call(options(500)).await, Err(ErrorCode::NotReadOnly));
    node.stop().await;
}
