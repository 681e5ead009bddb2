//! Tests that clients which break rules or bounds lose their connection, without an effect on other clients.

use std::time::Duration;

use rowlock_proto::{CreateMode, ErrorCode, Request};
use tokio::io::AsyncWriteExt;

use super::client::{Client, connect_request, create, raw, rest, set, unwatched};
use super::node::{Log, Node, config};
use crate::limits;

async fn still_serves(node: &Node) {
    let mut client = Client::connect(node).await;
    assert!(client.call(Request::GetData(unwatched("/"))).await.is_ok());
}

#[tokio::test]
async fn half_a_handshake_is_closed_at_its_deadline() {
    let node = Node::with(config(), "127.0.0.1:0", Duration::from_millis(50)).await;
    for bytes in [&b""[..], b"\0\0", b"\0\0\0\x2d\0\0\0\0"] {
        let mut stream = raw(&node).await;
        stream.write_all(bytes).await.unwrap();
        assert!(rest(&mut stream).await.is_empty());
    }
    still_serves(&node).await;
    assert_eq!(node.context.metrics.connections_rejected_total.get(), 3);
    node.stop().await;
}

/// The deadline is far: the announced length ends the connection, before any byte of the frame has come.
#[tokio::test]
async fn an_oversized_first_frame_closes_its_connection_at_once() {
    let node = Node::with(config(), "127.0.0.1:0", Duration::from_secs(3_600)).await;
    for length in [limits::HANDSHAKE_FRAME_MAX_BYTES + 1, limits::CLIENT_FRAME_MAX_BYTES] {
        let mut stream = raw(&node).await;
        stream.write_all(&u32::try_from(length).unwrap().to_be_bytes()).await.unwrap();
        assert!(rest(&mut stream).await.is_empty());
    }
    still_serves(&node).await;
    assert_eq!(node.context.metrics.connections_overflowed_total.get(), 2);
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed_and_slows_no_other() {
    let node = Node::start().await;
    let mut deaf = Client::connect(&node).await;
    let mut busy = Client::connect(&node).await;
    // Long paths fill the buffers of the kernel and of the node for a client that does not read.
    let long = "x".repeat(200_000);
    busy.call(create(&format!("/{long}"), CreateMode::Persistent)).await.unwrap();
    let watch = Request::AddWatch { path: format!("/{long}"), mode: 0 };
    deaf.call(watch).await.unwrap();
    let mut changes = 0;
    while node.context.registry.len() == 2 {
        busy.call(set(&format!("/{long}"), "x")).await.unwrap();
        changes += 1;
        assert!(changes < 1_000, "the connection must be closed");
    }
    assert!(changes > limits::WRITE_BACKLOG_MAX_BYTES / long.len());
    assert_eq!(node.context.metrics.connections_overflowed_total.get(), 1);
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_asks_and_does_not_read_is_not_read_from_either() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/big", CreateMode::Persistent)).await.unwrap();
    client.call(set("/big", &"x".repeat(900_000))).await.unwrap();
    let mut asked = Vec::new();
    for _ in 0..50 {
        asked.push(client.send(Request::GetData(unwatched("/big"))).await);
    }
    let mut other = Client::connect(&node).await;
    assert_eq!(other.call(Request::Exists(unwatched("/none"))).await, Err(ErrorCode::NoNode));
    // The replies have 45 MB; all of them arrive, in order, once the client reads.
    for xid in asked {
        let (header, result) = client.reply().await;
        assert_eq!(header.xid, xid);
        assert!(result.is_ok());
    }
    node.stop().await;
}

#[tokio::test]
async fn a_full_proposer_does_not_delay_the_end_of_service() {
    let node = Node::start().await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(Client::connect(&node).await);
    }
    node.log(Log::Stands);
    for client in &mut clients {
        for _ in 0..limits::PIPELINE_MAX_REQUESTS {
            client.send(Request::Sync("/".to_owned())).await;
        }
    }
    node.stop_serving();
    for client in &mut clients {
        client.closed().await;
    }
    node.stop().await;
}

#[tokio::test]
async fn many_idle_connections_leave_room_for_others() {
    let mut config = config();
    config.client.max_connections = 300;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    let mut idle = Vec::new();
    for _ in 0..250 {
        idle.push(Client::connect(&node).await);
    }
    still_serves(&node).await;
    node.stop().await;
}

#[tokio::test]
async fn too_fast_new_sessions_are_refused_and_known_ones_return() {
    let mut config = config();
    config.client.new_sessions_per_second = 1;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    let first = Client::connect(&node).await;
    // A burst of five passes, and one more for each second that the test takes.
    let mut refused = 0;
    for _ in 0..200 {
        refused += u32::from(Client::open(&node, connect_request(None)).await.is_none());
        let mut back = Client::open(&node, connect_request(Some(&first.opened))).await.expect("it is known");
        assert!(back.call(Request::Exists(unwatched("/"))).await.is_ok());
    }
    assert!(refused > 100, "{refused}");
    assert_eq!(node.context.metrics.sessions_refused_total.get(), u64::from(refused));
    node.stop().await;
}
