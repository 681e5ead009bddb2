//! Tests of requests and replies: order, zxids, errors, refusals.

use bytes::Bytes;
use rowlock_proto::request::{Create, Op, ReadOp};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Id, OpCode, Request, SessionId, Version, Xid, Zxid, perms};
use rowlock_types::limits;

use super::client::{Client, create, delete, set, unwatched};
use super::node::{Log, Node};

fn data(result: Result<Response, ErrorCode>) -> Bytes {
    match result {
        Ok(Response::Data(data, _)) => data.unwrap_or_default(),
        other => panic!("data were expected: {other:?}"),
    }
}

fn auth(scheme: &str, secret: &'static str) -> Request {
    Request::Auth { auth_type: 0, scheme: scheme.to_owned(), auth: Bytes::from_static(secret.as_bytes()) }
}

#[tokio::test]
async fn every_kind_of_write_is_answered_in_its_form() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let of = |path: &str, flags| Create {
        path: path.to_owned(),
        data: None,
        acl: Some(Acl::shared_open()),
        flags,
    };
    assert_eq!(client.call(Request::Create(of("/a", 0))).await, Ok(Response::Path("/a".to_owned())));
    for (request, path) in [
        (Request::Create2(of("/b", 1)), "/b"),
        (Request::CreateContainer(of("/c", 4)), "/c"),
        (Request::CreateTtl(of("/d", 5), 1_000), "/d"),
    ] {
        match client.call(request).await {
            Ok(Response::PathStat(created, stat)) => {
                let owner = if path == "/b" { client.opened.session_id } else { SessionId::NONE };
                assert_eq!((created.as_str(), stat.ephemeral_owner), (path, owner));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        matches!(client.call(set("/a", "1")).await, Ok(Response::Stat(stat)) if stat.version == Version(1))
    );
    assert_eq!(client.call(delete("/a")).await, Ok(Response::Empty));
    assert_eq!(client.call(delete("/a")).await, Err(ErrorCode::NoNode));
    assert_eq!(client.call(Request::Sync("/none".to_owned())).await, Ok(Response::Path("/none".to_owned())));
    let ops = vec![Op::Create2(of("/m", 0)), Op::Check { path: "/m".to_owned(), version: Version(7) }];
    let failed = [OpResult::Error(None), OpResult::Error(Some(ErrorCode::BadVersion))];
    assert_eq!(client.call(Request::Multi(ops)).await, Ok(Response::Multi(failed.to_vec())));
    node.stop().await;
}

#[tokio::test]
async fn reads_are_answered_from_the_local_state() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(create("/a", CreateMode::Persistent)).await.unwrap();
    client.call(create("/a/e", CreateMode::Ephemeral)).await.unwrap();
    assert_eq!(data(client.call(Request::GetData(unwatched("/a"))).await), "data");
    assert!(
        matches!(client.call(Request::Exists(unwatched("/a"))).await, Ok(Response::Stat(s)) if s.num_children == 1)
    );
    let names = Response::Children(vec!["e".to_owned()]);
    assert_eq!(client.call(Request::GetChildren(unwatched("/a"))).await, Ok(names));
    assert!(
        matches!(client.call(Request::GetChildren2(unwatched("/a"))).await, Ok(Response::Children2(n, _)) if n == ["e"])
    );
    assert!(
        matches!(client.call(Request::GetAcl("/a".to_owned())).await, Ok(Response::Acl(acl, _)) if acl == Acl::open())
    );
    let ephemerals = Response::Children(vec!["/a/e".to_owned()]);
    assert_eq!(client.call(Request::GetEphemerals("/".to_owned())).await, Ok(ephemerals));
    assert_eq!(client.call(Request::GetAllChildrenNumber("/a".to_owned())).await, Ok(Response::Number(1)));
    let reads = ["/a", "/none"].map(|p| ReadOp::GetData(p.to_owned()));
    match client.call(Request::MultiRead(reads.into())).await {
        Ok(Response::Multi(results)) => {
            assert!(matches!(&results[0], OpResult::GetData(Some(d), _) if d == "data"));
            assert_eq!(results[1], OpResult::Error(Some(ErrorCode::NoNode)));
        }
        other => panic!("{other:?}"),
    }
    node.stop().await;
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
async fn a_read_waits_for_the_earlier_writes_of_its_connection() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let mut other = Client::connect(&node).await;
    node.log(Log::Stands);
    client.send(create("/a", CreateMode::Persistent)).await;
    client.send(Request::GetData(unwatched("/a"))).await;
    // Another connection reads meanwhile, and does not see the write.
    assert_eq!(other.call(Request::GetData(unwatched("/a"))).await, Err(ErrorCode::NoNode));
    node.log(Log::Runs);
    assert!(client.reply().await.1.is_ok());
    assert_eq!(data(client.reply().await.1), "data");
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
async fn a_ping_bypasses_writes_and_waits_for_the_leader() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.log(Log::Stands);
    node.leader_in_contact.send(false);
    client.send(create("/a", CreateMode::Persistent)).await;
    client.send(Request::Ping).await;
    node.log(Log::Runs);
    assert_eq!(client.reply().await.0.xid, Xid(1));
    node.log(Log::Stands);
    client.send(delete("/a")).await;
    node.leader_in_contact.send(true);
    let (header, body) = client.reply().await;
    assert_eq!((header.xid, body), (Xid::PING, Ok(Response::Empty)));
    assert!(header.zxid > Zxid(0));
    node.log(Log::Runs);
    assert_eq!(client.reply().await.0.xid, Xid(2));
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
async fn identities_limit_reads_and_the_superuser_has_no_limits() {
    let node = Node::start().await;
    let (mut owner, mut other) = (Client::connect(&node).await, Client::connect(&node).await);
    assert_eq!(owner.call(auth("digest", "u:pw")).await, Ok(Response::Empty));
    let mine = vec![Acl { perms: perms::ALL, id: Id { scheme: "auth".to_owned(), id: String::new() } }];
    let secret = Create { path: "/s".to_owned(), data: None, acl: Some(mine.into()), flags: 0 };
    owner.call(Request::Create(secret)).await.unwrap();
    let read = || Request::GetData(unwatched("/s"));
    assert!(owner.call(read()).await.is_ok());
    assert_eq!(other.call(read()).await, Err(ErrorCode::NoAuth));
    assert_eq!(other.call(auth("digest", "u:wrong")).await, Ok(Response::Empty));
    assert_eq!(other.call(read()).await, Err(ErrorCode::NoAuth));
    assert_eq!(other.call(auth("digest", "super:test")).await, Ok(Response::Empty));
    assert!(other.call(read()).await.is_ok());
    match owner.call(Request::WhoAmI).await {
        Ok(Response::WhoAmI(ids)) => {
            let ids: Vec<_> = ids.iter().map(|i| (i.scheme.as_str(), i.id.as_str())).collect();
            assert_eq!(ids, [("ip", "127.0.0.1"), ("digest", "u")]);
        }
        answer => panic!("{answer:?}"),
    }
    node.stop().await;
}

#[tokio::test]
async fn an_unknown_auth_scheme_fails_and_closes() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.send(auth("nosuch", "x")).await;
    let (header, result) = client.reply().await;
    assert_eq!((header.xid, header.zxid, result), (Xid::AUTH, Zxid(0), Err(ErrorCode::AuthFailed)));
    client.closed().await;
    node.stop().await;
}

#[tokio::test]
async fn a_bad_body_is_a_marshalling_error_and_keeps_the_connection() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    node.log(Log::Stands);
    client.send(create("/a", CreateMode::Persistent)).await;
    client.send_raw(&[0, 0, 0, 10, 0, 0, 0, 9, 0, 0, 0, 3, 0, 0], Some((Xid(9), OpCode::Exists))).await;
    node.log(Log::Runs);
    assert!(client.reply().await.1.is_ok());
    let (header, result) = client.reply().await;
    assert_eq!((header.xid, result), (Xid(9), Err(ErrorCode::MarshallingError)));
    assert!(client.call(Request::GetData(unwatched("/a"))).await.is_ok());
    node.stop().await;
}

#[tokio::test]
async fn unknown_opcodes_and_bare_checks_close_after_earlier_replies() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.send(create("/a", CreateMode::Persistent)).await;
    client.send_raw(&[0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 3, 9], Some((Xid(5), OpCode::Ping))).await;
    assert!(client.reply().await.1.is_ok());
    assert_eq!(client.reply().await.1, Err(ErrorCode::Unimplemented));
    client.closed().await;
    let mut client = Client::connect(&node).await;
    let check = Request::Check { path: "/a".to_owned(), version: Version::ANY };
    assert_eq!(client.call(check).await, Err(ErrorCode::Unimplemented));
    client.closed().await;
    node.stop().await;
}

fn reconfig(joining: &str, config_id: i64) -> Request {
    Request::Reconfig { joining: Some(joining.to_owned()), leaving: None, new_members: None, config_id }
}

const OBSERVER: &str = "server.100=0.0.0.0:1:2:observer;0.0.0.0:3";

#[tokio::test]
async fn only_superusers_reconfigure_and_get_the_new_configuration() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    assert_eq!(client.call(reconfig(OBSERVER, -1)).await, Err(ErrorCode::NoAuth));
    assert_eq!(client.call(reconfig("some thing", -1)).await, Err(ErrorCode::BadArguments));
    client.call(auth("digest", "super:test")).await.unwrap();
    client.send(reconfig(OBSERVER, -1)).await;
    // The next request waits for the reconfiguration.
    client.send(Request::GetData(unwatched("/zookeeper/config"))).await;
    let written = format!("{OBSERVER}\nversion=1");
    assert_eq!(data(client.reply().await.1), written);
    assert_eq!(data(client.reply().await.1), written);
    assert_eq!(client.call(reconfig("some thing", -1)).await, Err(ErrorCode::BadArguments));
    let mut other = Client::connect(&node).await;
    assert_eq!(other.call(reconfig(OBSERVER, 2)).await, Err(ErrorCode::BadVersion));
    assert_eq!(other.call(reconfig(OBSERVER, 1)).await, Err(ErrorCode::NoAuth));
    node.stop().await;
}

#[tokio::test]
async fn reconfig_may_be_switched_off() {
    let mut config = super::node::config();
    config.client.reconfig = false;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    let mut client = Client::connect(&node).await;
    client.call(auth("digest", "super:test")).await.unwrap();
    assert_eq!(client.call(reconfig(OBSERVER, -1)).await, Err(ErrorCode::ReconfigDisabled));
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
async fn an_empty_id_may_come_as_null_as_kazoo_writes_it() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(auth("digest", "u:pw")).await.unwrap();
    let mut body = Vec::new();
    body.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]); // xid 1, create
    body.extend_from_slice(b"\0\0\0\x02/a\xff\xff\xff\xff"); // path, null data
    body.extend_from_slice(b"\0\0\0\x01\0\0\0\x1f\0\0\0\x04auth\xff\xff\xff\xff"); // all for auth:null
    body.extend_from_slice(&[0, 0, 0, 0]); // persistent
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    client.send_raw(&frame, Some((Xid(1), OpCode::Create))).await;
    assert_eq!(client.reply().await.1, Ok(Response::Path("/a".to_owned())));
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
