//! Tests of requests and replies: order, zxids, errors, refusals.

use bytes::Bytes;
use rowlock_proto::request::ReadOp;
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{CreateMode, ErrorCode, OpCode, Request, SessionId, Xid, Zxid};

use super::client::{Client, create, delete, set, unwatched};
use super::node::{Log, Node};
use crate::limits;

fn data(result: Result<Response, ErrorCode>) -> Bytes {
    match result {
        Ok(Response::Data(data, _)) => data.unwrap_or_default(),
        other => panic!("data were expected: {other:?}"),
    }
}

#[tokio::test]
async fn a_multi_read_has_a_bounded_reply() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/a", CreateMode::Persistent)).await.unwrap();
    client.call(set("/a", &"x".repeat(1_000_000))).await.unwrap();
    client.call(create("/p", CreateMode::Persistent)).await.unwrap();
    for at in 0..10 {
        client.call(create(&format!("/p/{at}{}", "n".repeat(4_000)), CreateMode::Persistent)).await.unwrap();
    }
    for (op, count) in [(ReadOp::GetData("/a".into()), 20), (ReadOp::GetChildren("/p".into()), 2_000)] {
        let Ok(Response::Multi(results)) = client.call(Request::MultiRead(vec![op; count])).await else {
            panic!("one result for each operation")
        };
        assert_eq!(results.len(), count);
        let refused = OpResult::Error(Some(ErrorCode::ThrottledOp));
        let done = results.iter().take_while(|result| **result != refused).count();
        assert!(results[done..].iter().all(|result| *result == refused));
        let bytes = |result: &OpResult| match result {
            OpResult::GetData(Some(data), _) => data.len(),
            OpResult::GetChildren(names) => names.iter().map(|name| name.len() + 4).sum(),
            other => panic!("{other:?}"),
        };
        let each = bytes(&results[0]);
        assert_eq!(done, limits::MULTI_READ_MAX_BYTES.div_ceil(each), "of {each} bytes each");
    }
    node.stop().await;
}

#[tokio::test]
async fn replies_come_in_request_order_and_zxids_never_go_back() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let mut noise = Client::connect(&node).await;
    client.call(create("/a", CreateMode::Persistent)).await.unwrap();
    let mut sent = Vec::new();
    for i in 0..500 {
        sent.push(client.send(set("/a", &i.to_string())).await);
        sent.push(client.send(Request::GetData(unwatched("/a"))).await);
        noise.send(set("/a", "noise")).await;
        noise.send(delete("/none")).await;
    }
    let mut last_zxid = Zxid(0);
    for xid in sent {
        let (header, result) = client.reply().await;
        assert_eq!(header.xid, xid);
        assert!(header.zxid >= last_zxid, "{} after {last_zxid}", header.zxid);
        assert!(result.is_ok());
        last_zxid = header.zxid;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_read_sees_its_connections_earlier_writes_only() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/a", CreateMode::Persistent)).await.unwrap();
    for i in 0..200 {
        client.send(set("/a", &i.to_string())).await;
        client.send(Request::GetData(unwatched("/a"))).await;
    }
    for i in 0..200 {
        assert!(client.reply().await.1.is_ok());
        assert_eq!(data(client.reply().await.1), i.to_string());
    }
    node.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_pipeline_are_all_answered_in_order() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.log(Log::Stands);
    let count = 3 * limits::PIPELINE_MAX_REQUESTS;
    for _ in 0..count {
        client.send(Request::Sync("/".to_owned())).await;
    }
    node.log(Log::Runs);
    for xid in 1..=count {
        assert_eq!(client.reply().await.0.xid, Xid(xid as i32));
    }
    node.stop().await;
}

#[tokio::test]
async fn a_ping_beyond_the_leaders_full_queue_is_answered_later() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.leader_in_contact.send(false);
    let fill =
        || while node.context.touch.confirm(SessionId(1), crate::node::delivery::outbox::channel().0) {};
    fill();
    // Meanwhile the leader takes one keepalive out of the queue, and keeps it.
    client.call(Request::WhoAmI).await.unwrap();
    fill();
    client.send(Request::Ping).await;
    let (header, _) = {
        client.send(Request::WhoAmI).await;
        client.reply().await
    };
    assert_eq!(header.xid, Xid(2), "the ping waits");
    node.leader_in_contact.send(true);
    assert_eq!(client.reply().await.0.xid, Xid::PING);
    node.stop().await;
}

#[tokio::test]
async fn sasl_begins_with_a_challenge_and_a_wrong_answer_closes() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.send(Request::Sasl(Some(Bytes::new()))).await;
    let (header, challenge) = client.reply().await;
    assert_eq!(header.zxid, Zxid(0));
    match challenge {
        Ok(Response::Sasl(Some(token))) => assert!(token.starts_with(b"realm=\"zk-sasl-md5\",nonce=\"")),
        other => panic!("{other:?}"),
    }
    let answer = Bytes::from_static(b"username=\"bob\",response=0");
    assert_eq!(client.call(Request::Sasl(Some(answer))).await, Err(ErrorCode::AuthFailed));
    client.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn the_last_reply_reaches_a_client_that_goes_on_sending() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/big", CreateMode::Persistent)).await.unwrap();
    client.call(set("/big", &"x".repeat(900_000))).await.unwrap();
    client.send(Request::GetData(unwatched("/big"))).await;
    client.send_raw(&[0, 0, 0, 8, 0, 0, 0, 99, 0, 0, 3, 9], Some((Xid(99), OpCode::Ping))).await;
    // More than the server reads at once: closing a socket with unread input resets it, and the client would
    // lose the bytes in flight.
    client.send_raw(&[0; 512 << 10], None).await;
    while !node.context.registry.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(client.reply().await.1.is_ok());
    assert_eq!(client.reply().await.1, Err(ErrorCode::Unimplemented));
    client.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn wrong_superuser_passwords_count_and_end_at_a_bound() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    for n in 0..50 {
        let guess = format!("super:guess{n}").into();
        client.send(Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth: guess }).await;
    }
    let mut taken = 0_u64;
    while client.reply().await.1 == Ok(Response::Empty) {
        taken += 1;
    }
    client.closed().await;
    assert!((10..50).contains(&taken), "{taken}");
    assert_eq!(node.context.metrics.super_passwords_wrong_total.get(), taken + 1);
    node.stop().await;
}
