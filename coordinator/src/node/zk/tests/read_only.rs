//! Tests of a node without a quorum: the requests that it serves, and those that it refuses.

use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, Request, SessionId, Zxid};
use rowlock_types::limits;

use super::client::{Client, connect_request, create, delete, set, unwatched};
use super::node::{Node, config};
use super::words::send_word;
use crate::node::zk::read_only::Isolation;
use rowlock_sessions::last_contact::LastContact;

async fn node() -> Node {
    let mut config = config();
    config.client.read_only_mode = true;
    Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await
}

fn tolerant(request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { read_only: Some(true), ..request }
}

#[tokio::test]
async fn read_only_connections_end_when_the_quorum_returns() {
    let node = node().await;
    let mut before = Client::connect(&node).await;
    before.call(create("/a", CreateMode::Persistent)).await.unwrap();
    node.stop_serving();
    before.closed().await;
    assert_eq!(send_word(&node, "isro").await, "ro");
    assert!(send_word(&node, "srvr").await.contains("Mode: read-only"));
    assert!(Client::open(&node, connect_request(None)).await.is_none(), "it did not allow it");

    let mut client = Client::open(&node, tolerant(connect_request(None))).await.unwrap();
    assert_eq!(client.opened.read_only, Some(true));
    assert_ne!(client.opened.session_id, SessionId::NONE);
    assert!(client.call(Request::GetData(unwatched("/a"))).await.is_ok());
    for write in [create("/b", CreateMode::Ephemeral), set("/a", ""), delete("/a"), Request::Sync("/".into())]
    {
        assert_eq!(client.call(write).await, Err(ErrorCode::NotReadOnly));
    }
    assert_eq!(client.call(Request::Ping).await, Ok(Response::Empty));
    node.serve_again();
    client.closed().await;
    assert_eq!(send_word(&node, "isro").await, "rw");

    // Only that node knew the session.
    let again = Client::open(&node, tolerant(connect_request(Some(&client.opened)))).await.unwrap();
    assert_eq!(again.opened.session_id, SessionId::NONE);
    let real = Client::open(&node, tolerant(connect_request(None))).await.unwrap();
    assert_eq!(real.opened.read_only, Some(false));
    node.stop().await;
}

#[tokio::test]
async fn a_cluster_session_is_neither_prolonged_nor_closed() {
    let node = node().await;
    let first = Client::connect(&node).await;
    node.stop_serving();
    let mut client = Client::open(&node, tolerant(connect_request(Some(&first.opened)))).await.unwrap();
    assert_eq!(client.opened.session_id, first.opened.session_id);
    assert_eq!(client.opened.read_only, Some(true));
    // The reply waits for no confirmation by a leader, so it proves nothing about the session.
    node.leader_in_contact.send(false);
    assert_eq!(client.call(Request::Ping).await, Ok(Response::Empty));
    assert_eq!(client.call(Request::CloseSession).await, Err(ErrorCode::NotReadOnly));
    client.closed().await;
    assert!(node.context.replica.state.read().session(first.opened.session_id).is_some());
    node.stop().await;
}

#[tokio::test]
async fn an_unknown_session_is_not_reported_as_expired() {
    let node = node().await;
    let known = Client::connect(&node).await;
    node.stop_serving();
    let mut unknown = tolerant(connect_request(Some(&known.opened)));
    unknown.session_id = SessionId(known.opened.session_id.0 + 1);
    assert!(Client::open(&node, unknown).await.is_none());
    let mut ahead = tolerant(connect_request(None));
    ahead.last_zxid_seen = Zxid(1 << 40);
    assert!(Client::open(&node, ahead).await.is_none());
    let mut local = Client::open(&node, tolerant(connect_request(None))).await.unwrap();
    assert_eq!(local.call(Request::CloseSession).await, Ok(Response::Empty));
    local.closed().await;
    let over = Client::open(&node, tolerant(connect_request(Some(&local.opened)))).await.unwrap();
    assert_eq!(over.opened.session_id, SessionId::NONE);
    node.stop().await;
}

#[tokio::test]
async fn nothing_is_served_unless_the_configuration_allows_it() {
    let node = Node::start().await;
    node.stop_serving();
    assert_eq!(send_word(&node, "isro").await, "null");
    assert!(Client::open(&node, tolerant(connect_request(None))).await.is_none());
    node.stop().await;
}

#[test]
fn a_node_counts_as_isolated_only_when_contact_is_old() {
    let second = std::time::Duration::from_secs(1);
    let contact = std::sync::Arc::new(LastContact::default());
    assert!(!Isolation::new(true, contact.clone(), 60 * second).is_isolated(), "it has just begun");
    let isolation = Isolation::new(true, contact.clone(), std::time::Duration::ZERO);
    assert!(isolation.is_isolated());
    contact.mark(rowlock_env::time::now() + 60 * second);
    assert!(!isolation.is_isolated());
    assert!(!Isolation::new(false, std::sync::Arc::default(), std::time::Duration::ZERO).is_isolated());
}
