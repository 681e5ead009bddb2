//! Tests of opening, reattaching and losing sessions.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::time;
use rowlock_frames::wire::Wire;
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, OpCode, Request, RequestFrame, SessionId, Xid, Zxid, encode};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use tokio::io::AsyncWriteExt;

use super::client::{Client, connect_request, create, raw, rest, unwatched};
use super::node::{Log, Node};
use crate::delivery::outbox::{self, Inbox};
use crate::proposer::Submission;

#[tokio::test]
async fn requests_may_be_sent_right_behind_the_handshake() {
    let node = Node::start().await;
    let mut out = BytesMut::new();
    encode::connect_request(&connect_request(None), &mut out);
    encode::request(&RequestFrame { xid: Xid(1), request: create("/a", CreateMode::Persistent) }, &mut out);
    encode::request(&RequestFrame { xid: Xid(2), request: Request::GetData(unwatched("/a")) }, &mut out);
    let mut wire = Wire::over(raw(&node).await);
    wire.send(&out).await.unwrap();
    let opened = wire.opened().await.unwrap();
    let mut client = Client::over(wire, opened);
    client.send_raw(&[], Some((Xid(1), OpCode::Create))).await;
    client.send_raw(&[], Some((Xid(2), OpCode::GetData))).await;
    assert_eq!(client.reply().await.1, Ok(Response::Path("/a".to_owned())));
    assert!(matches!(client.reply().await.1, Ok(Response::Data(Some(_), _))));
    node.stop().await;
}

#[tokio::test]
async fn a_client_slightly_ahead_is_served_after_catching_up() {
    let node = Node::start().await;
    let mut writer = Client::connect(&node).await;
    node.log(Log::Stands);
    writer.send(create("/a", CreateMode::Persistent)).await;
    // Simulates that another node has applied the create already and shown it to this client.
    let ahead = ConnectRequest { last_zxid_seen: Zxid(2), ..connect_request(None) };
    let catching_up = async {
        while node.context.registry.len() < 2 {
            tokio::task::yield_now().await;
        }
        node.log(Log::Runs);
    };
    let (client, ()) = tokio::join!(Client::open(&node, ahead), catching_up);
    let mut client = client.expect("served");
    assert!(client.call(Request::GetData(unwatched("/a"))).await.is_ok());
    node.stop().await;
}

/// Submits a command to the log, as from another node.
async fn submit(node: &Node, command: Command) -> Inbox {
    let (reply_to, answer) = outbox::channel();
    let (session, attachment, identities) = (SessionId::NONE, Attachment::default(), Default::default());
    let submission =
        Submission { session, attachment, identities, command, reply_to, tag: 0, received: time::now() };
    assert!(node.context.proposer.submit(submission).await.is_ok());
    answer
}

/// The node had not heard of the session yet when the client asked, and did not for so long that the client
/// went to another node.
#[tokio::test]
async fn a_lagging_nodes_attach_takes_no_session_from_its_new_one() {
    const TIMEOUT_MS: u32 = 5_000;
    let node = Node::start().await;
    node.log(Log::Stands);
    let (password, session) = ([7; 16], SessionId((1 << 56) + 1));
    let proof = Proof::of(&password);
    let opened = Command::OpenSession { proof, timeout_ms: TIMEOUT_MS };
    let moved = Command::Reattach { from: Some(Attachment(1)), session, proof, timeout_ms: TIMEOUT_MS };
    let _answers = [submit(&node, opened).await, submit(&node, moved).await];
    let request = ConnectRequest {
        session_id: session,
        password: Bytes::copy_from_slice(&password),
        timeout_ms: TIMEOUT_MS.cast_signed(),
        ..connect_request(None)
    };
    let mut bytes = BytesMut::new();
    encode::connect_request(&request, &mut bytes);
    let mut given_up = raw(&node).await;
    given_up.write_all(&bytes).await.unwrap();
    while node.context.metrics.bytes_received_total.get() < bytes.len() as u64 {
        tokio::task::yield_now().await;
    }
    // Minimum time that clients wait.
    time::sleep(Duration::from_millis(u64::from(TIMEOUT_MS / 10))).await;
    node.log(Log::Runs);
    assert!(rest(&mut given_up).await.is_empty(), "it is closed without an answer");
    assert_eq!(node.context.replica.state.read().session(session).unwrap().attachment, Attachment(2));
    node.stop().await;
}

#[tokio::test]
async fn a_session_unknown_to_a_late_node_is_served_later() {
    let node = Node::start().await;
    node.log(Log::Stands);
    let (password, session) = ([7; 16], SessionId((1 << 56) + 1));
    let _answer =
        submit(&node, Command::OpenSession { proof: Proof::of(&password), timeout_ms: 10_000 }).await;
    let password = Bytes::copy_from_slice(&password);
    let request = ConnectRequest { session_id: session, password, ..connect_request(None) };
    let asked = async {
        while node.context.registry.is_empty() {
            tokio::task::yield_now().await;
        }
        node.log(Log::Runs);
    };
    let (client, ()) = tokio::join!(Client::open(&node, request), asked);
    let mut client = client.expect("served");
    assert_eq!(client.opened.session_id, session);
    assert!(client.call(create("/e", CreateMode::Ephemeral)).await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_hung_up_takes_its_session_from_no_connection() {
    let node = Node::start().await;
    let mut living = Client::connect(&node).await;
    node.log(Log::Stands);
    living.send(create("/e", CreateMode::Ephemeral)).await;
    // The handshake waits for the log, because its client has seen more than this node.
    let request = ConnectRequest { last_zxid_seen: Zxid(2), ..connect_request(Some(&living.opened)) };
    let mut bytes = BytesMut::new();
    encode::connect_request(&request, &mut bytes);
    let mut gone = raw(&node).await;
    gone.write_all(&bytes).await.unwrap();
    while node.context.registry.len() < 2 {
        tokio::task::yield_now().await;
    }
    drop(gone);
    living.send(Request::Ping).await;
    assert_eq!(living.reply().await.0.xid, Xid::PING, "so the node has had time to hear of the end");
    node.log(Log::Runs);
    assert!(living.reply().await.1.is_ok());
    while node.context.registry.len() > 1 {
        tokio::task::yield_now().await;
    }
    let session = living.opened.session_id;
    assert_eq!(node.context.replica.state.read().session(session).unwrap().attachment, Attachment(1));
    node.stop().await;
}
