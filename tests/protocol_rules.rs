//! session-order, read-your-writes, monotonic-reads: rules of the protocol that only several real nodes can
//! break. The test sends raw frames, so that no client library hides a fault.

use bytes::Bytes;
use rowlock_frames::raw::RawClient;
use rowlock_frames::wire::resume_request;
use rowlock_proto::request::{ConnectRequest, Create, Op, PathWatch, SetData};
use rowlock_proto::response::OpResult;
use rowlock_proto::{Acl, CreateMode, ErrorCode, Request, Response, SessionId, Version};

use crate::support::cluster::{Cluster, FAST};

/// Resumes the session on another node, with the last zxid that it has seen.
async fn move_to(client: RawClient, addr: &str) -> RawClient {
    let last_zxid_seen = client.last_zxid;
    let request = ConnectRequest { last_zxid_seen, ..resume_request(&client.opened) };
    drop(client);
    let moved = RawClient::open(addr, request).await.expect("the node answers");
    assert_ne!(moved.session(), SessionId::NONE, "the session was refused");
    moved
}

async fn send(client: &mut RawClient, request: Request) -> Result<Response, ErrorCode> {
    let seen = client.last_zxid;
    client.send(request).await;
    let (header, body) = client.reply().await;
    assert!(header.zxid >= seen, "the zxid of replies went back");
    body
}

fn create(path: &str) -> Create {
    let (data, acl) = (Some(Bytes::from_static(b"v")), Some(Acl::shared_open()));
    Create { path: path.to_owned(), data, acl, flags: CreateMode::Persistent.flags() }
}

fn exists(path: &str) -> Request {
    Request::Exists(PathWatch { path: path.to_owned(), watch: false })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_moves_from_node_to_node_always_sees_its_own_writes_and_sync_shows_those_of_others() {
    let cluster = Cluster::start(3, FAST).await;
    let mut writer = RawClient::attach(cluster.endpoint(1), 40_000).await;
    let mut readers = Vec::new();
    for node in 1..=3 {
        readers.push(RawClient::attach(cluster.endpoint(node), 40_000).await);
    }
    for round in 0..60_u64 {
        let path = format!("/moved-{round}");
        send(&mut writer, Request::Create2(create(&path))).await.unwrap();
        // read-your-writes, monotonic-reads: at once, on any node.
        writer = move_to(writer, cluster.endpoint(round % 3 + 1)).await;
        let own = send(&mut writer, exists(&path)).await;
        assert!(own.is_ok(), "round {round}: own write is not seen after a move: {own:?}");
        // Another session sees it after a sync on any node.
        for reader in &mut readers {
            send(reader, Request::Sync("/".to_owned())).await.unwrap();
            let other = send(reader, exists(&path)).await;
            assert!(other.is_ok(), "round {round}: sync did not show it: {other:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_multi_has_a_clean_header_an_error_for_each_operation_and_no_effect_on_any_node() {
    let cluster = Cluster::start(3, FAST).await;
    let mut raw = RawClient::attach(cluster.endpoint(1), 40_000).await;
    let wrong = SetData { path: "/".to_owned(), data: None, version: Version(77) };
    let ops = vec![Op::Create2(create("/half")), Op::SetData(wrong), Op::Create2(create("/never"))];
    let body = send(&mut raw, Request::Multi(ops)).await;
    let expected = [None, Some(ErrorCode::BadVersion), Some(ErrorCode::RuntimeInconsistency)];
    let expected = Response::Multi(expected.map(OpResult::Error).to_vec());
    assert_eq!(body, Ok(expected), "the error stands in the body");
    for node in 1..=3 {
        let mut raw = RawClient::attach(cluster.endpoint(node), 40_000).await;
        send(&mut raw, Request::Sync("/".to_owned())).await.unwrap();
        assert_eq!(send(&mut raw, exists("/half")).await, Err(ErrorCode::NoNode));
    }
}
