//! Tests of opening, reattaching and losing sessions.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::time;
use rowlock_frames::wire::Wire;
use rowlock_proto::request::ConnectRequest;
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, OpCode, Request, RequestFrame, SessionId, Xid, Zxid, encode};
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command};
use tokio::io::AsyncWriteExt;

use super::client::{Client, connect_request, create, raw, rest, set, unwatched};
use super::node::{Log, Node};
use crate::node::delivery::outbox::{self, Inbox, Message};
use crate::node::proposer::Submission;

#[tokio::test]
async fn a_new_session_gets_an_id_a_password_and_a_clamped_timeout() {
    let node = Node::start().await;
    for (asked, given) in [(10_000, 10_000), (1, 4_000), (-1, 4_000), (i32::MAX, 40_000)] {
        let request = ConnectRequest { timeout_ms: asked, ..connect_request(None) };
        let opened = Client::open(&node, request).await.unwrap().opened;
        assert_eq!(opened.timeout_ms, given);
        assert_ne!(opened.session_id, SessionId::NONE);
        assert_eq!(opened.password.len(), 16);
        assert_ne!(opened.password, [0; 16].as_slice());
        assert_eq!(opened.read_only, Some(false));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_the_read_only_byte_out_gets_none_back() {
    let node = Node::start().await;
    let request = ConnectRequest { read_only: None, password: Bytes::new(), ..connect_request(None) };
    let opened = Client::open(&node, request).await.unwrap().opened;
    assert_eq!(opened.read_only, None);
    assert_ne!(opened.session_id, SessionId::NONE);
    node.stop().await;
}

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
async fn an_invalid_session_is_answered_with_zeroes_and_closed() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let mut wrong = connect_request(Some(&client.opened));
    wrong.password = Bytes::from_static(&[7; 16]);
    let mut short = connect_request(Some(&client.opened));
    short.password = Bytes::from_static(b"short");
    let mut unknown = connect_request(None);
    unknown.session_id = SessionId(0x1234);
    for request in [wrong, short, unknown] {
        let mut refused = Client::open(&node, request).await.unwrap();
        assert_eq!((refused.opened.session_id, refused.opened.timeout_ms), (SessionId::NONE, 0));
        assert_eq!(refused.opened.password, [0; 16].as_slice());
        refused.closed().await;
    }
    assert!(client.call(create("/unharmed", CreateMode::Ephemeral)).await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_saw_the_future_is_closed_without_an_answer() {
    let node = Node::start().await;
    let ahead = ConnectRequest { last_zxid_seen: Zxid(1 << 40), ..connect_request(None) };
    assert!(Client::open(&node, ahead).await.is_none());
    node.stop().await;
}

#[tokio::test]
async fn a_foreign_client_far_ahead_gets_an_expired_session() {
    let node = Node::start().await;
    let ours = Client::connect(&node).await;
    let mut unknown = ConnectRequest { last_zxid_seen: Zxid(1 << 40), ..connect_request(None) };
    unknown.session_id = SessionId(0x1234);
    let mut namesake = ConnectRequest { session_id: ours.opened.session_id, ..unknown.clone() };
    namesake.password = Bytes::from_static(&[7; 16]);
    for request in [unknown.clone(), namesake] {
        let mut refused = Client::open(&node, request).await.unwrap();
        assert_eq!(refused.opened.session_id, SessionId::NONE);
        refused.closed().await;
    }
    // A session of this cluster may have seen what this node lacks yet: its client must ask another node.
    let last_zxid_seen = unknown.last_zxid_seen;
    let late = ConnectRequest { last_zxid_seen, ..connect_request(Some(&ours.opened)) };
    assert!(Client::open(&node, late).await.is_none());
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

#[tokio::test]
async fn a_moved_session_keeps_ephemerals_and_closes_its_old_use() {
    let node = Node::start().await;
    let mut old = Client::connect(&node).await;
    old.call(create("/e", CreateMode::Ephemeral)).await.unwrap();
    let mut new = Client::open(&node, connect_request(Some(&old.opened))).await.unwrap();
    assert_eq!(new.opened.session_id, old.opened.session_id);
    assert_eq!(new.opened.password, old.opened.password);
    old.send(set("/e", "old")).await;
    old.closed().await;
    assert!(new.call(set("/e", "new")).await.is_ok());
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

/// The client has gone to another node while the attach was on its way into the log.
#[tokio::test]
async fn a_late_attach_takes_no_session_from_its_new_connection() {
    let node = Node::start().await;
    let first = Client::connect(&node).await;
    let mut second = Client::open(&node, connect_request(Some(&first.opened))).await.unwrap();
    let (session, from) = (first.opened.session_id, Attachment(1));
    let proof = Proof::of(&first.opened.password);
    let late = Command::Reattach { from: Some(from), session, proof, timeout_ms: 10_000 };
    let mut answer = submit(&node, late).await;
    answer.ready().await;
    let mut messages = VecDeque::new();
    answer.take(&mut messages).unwrap();
    let Some(Message::Applied { answer, .. }) = messages.pop_front() else { panic!("{messages:?}") };
    assert_eq!(answer.applied.result, Err(ErrorCode::SessionMoved));
    assert!(second.call(create("/e", CreateMode::Ephemeral)).await.is_ok());
    node.stop().await;
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

#[tokio::test]
async fn a_node_that_does_not_serve_closes_handshakes_and_connections() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.stop_serving();
    client.closed().await;
    assert!(Client::open(&node, connect_request(None)).await.is_none());
    node.status.modify(|status| status.serving = true);
    Client::open(&node, connect_request(Some(&client.opened))).await.expect("the session lives on");
    node.stop().await;
}

#[tokio::test]
async fn a_request_with_an_unknown_outcome_closes_its_connection() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.log(Log::Loses);
    client.send(create("/a", CreateMode::Persistent)).await;
    client.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn close_session_replies_after_its_ephemerals_are_gone() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let mut other = Client::connect(&node).await;
    client.call(create("/e", CreateMode::Ephemeral)).await.unwrap();
    assert_eq!(client.call(Request::CloseSession).await, Ok(Response::Empty));
    client.closed().await;
    assert_eq!(other.call(Request::Exists(unwatched("/e"))).await, Err(ErrorCode::NoNode));
    let again = Client::open(&node, connect_request(Some(&client.opened))).await.unwrap();
    assert_eq!(again.opened.session_id, SessionId::NONE);
    node.stop().await;
}

#[tokio::test]
async fn a_session_that_expires_takes_its_connection_with_it() {
    let mut config = super::node::config();
    config.session.min_timeout_ms = 50;
    let node = Node::with(config, "127.0.0.1:0", rowlock_types::limits::HANDSHAKE_MAX).await;
    let request = ConnectRequest { timeout_ms: 50, ..connect_request(None) };
    let mut client = Client::open(&node, request).await.unwrap();
    client.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn a_malformed_handshake_is_closed_without_an_answer() {
    let node = Node::start().await;
    for bytes in [&b"\0\0\0\x05hello"[..], &[0xff; 4], &[0x7f, 0xff, 0xff, 0xff], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = raw(&node).await;
        stream.write_all(bytes).await.unwrap();
        assert!(rest(&mut stream).await.is_empty());
    }
    node.stop().await;
}
