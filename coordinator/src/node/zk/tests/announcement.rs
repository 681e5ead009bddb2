//! Tests of the znode with the node's extensions of ZooKeeper's protocol.

use bytes::Bytes;
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::request::{Op, ReadOp, SetWatches};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{CreateMode, ErrorCode, Request, Version, Zxid};
use rowlock_types::limits;

use super::client::{Client, connect_request, create, delete, set, unwatched, watched};
use super::node::{Node, config};

/// Promised content: a line per feature.
const TEXT: &[u8] = match (cfg!(feature = "access"), cfg!(feature = "cluster")) {
    (true, true) => b"acquire 3\ntagged 1\nsession-options 1\nreport 1\noperate 1\n",
    (true, false) => b"acquire 3\ntagged 1\nsession-options 1\nreport 1\n",
    (false, true) => b"acquire 3\ntagged 1\nsession-options 1\noperate 1\n",
    (false, false) => b"acquire 3\ntagged 1\nsession-options 1\n",
};

#[tokio::test]
async fn the_announcement_is_readable_and_in_no_list() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let found = client.call(Request::GetData(unwatched(ANNOUNCEMENT))).await;
    let Ok(Response::Data(Some(data), stat)) = found else { panic!("{found:?}") };
    assert_eq!((&*data, stat.data_length as usize), (TEXT, TEXT.len()));
    assert_eq!(client.call(Request::Exists(unwatched(ANNOUNCEMENT))).await, Ok(Response::Stat(stat)));
    let children = client.call(Request::GetChildren(unwatched(ANNOUNCEMENT))).await;
    assert_eq!(children, Ok(Response::Children(Vec::new())));
    let listed = client.call(Request::GetChildren(unwatched("/zookeeper"))).await;
    assert_eq!(listed, Ok(Response::Children(vec!["config".to_owned(), "quota".to_owned()])));
    let read = client.call(Request::MultiRead(vec![ReadOp::GetData(ANNOUNCEMENT.to_owned())])).await;
    let data = Some(Bytes::from_static(TEXT));
    assert_eq!(read, Ok(Response::Multi(vec![OpResult::GetData(data, stat)])));
    node.stop().await;
}

#[tokio::test]
async fn the_announcement_is_read_only() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    let made = client.call(create(ANNOUNCEMENT, CreateMode::Persistent)).await;
    assert_eq!(made, Err(ErrorCode::NodeExists));
    assert_eq!(client.call(set(ANNOUNCEMENT, "acquire 9")).await, Err(ErrorCode::NoNode));
    assert_eq!(client.call(delete(ANNOUNCEMENT)).await, Err(ErrorCode::NoNode));
    let below = client.call(create(&format!("{ANNOUNCEMENT}/x"), CreateMode::Persistent)).await;
    assert_eq!(below, Err(ErrorCode::NoNode));
    let Request::Create(of) = create(ANNOUNCEMENT, CreateMode::Persistent) else { unreachable!() };
    let check = Op::Check { path: "/".to_owned(), version: Version::ANY };
    let refused = client.call(Request::Multi(vec![check, Op::Create(of)])).await;
    let results = vec![OpResult::Error(None), OpResult::Error(Some(ErrorCode::NodeExists))];
    assert_eq!(refused, Ok(Response::Multi(results)));
    let found = client.call(Request::GetData(unwatched(ANNOUNCEMENT))).await;
    assert!(matches!(found, Ok(Response::Data(Some(data), _)) if data == TEXT));
    node.stop().await;
}

#[tokio::test]
async fn a_restored_watch_on_the_announcement_sends_no_event() {
    let node = Node::start().await;
    let mut client = Client::connect(&node).await;
    client.call(Request::GetData(watched(ANNOUNCEMENT))).await.unwrap();
    let mut again = Client::open(&node, connect_request(Some(&client.opened))).await.unwrap();
    let data = vec![ANNOUNCEMENT.to_owned()];
    let watches = SetWatches { relative_zxid: Zxid(1), data, ..SetWatches::default() };
    assert_eq!(again.call(Request::SetWatches(watches)).await, Ok(Response::Empty));
    node.stop().await;
}

#[tokio::test]
async fn a_node_without_a_quorum_announces_the_same() {
    let mut config = config();
    config.client.read_only_mode = true;
    let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
    node.stop_serving();
    let mut request = connect_request(None);
    request.read_only = Some(true);
    let mut client = Client::open(&node, request).await.unwrap();
    let found = client.call(Request::GetData(unwatched(ANNOUNCEMENT))).await;
    assert!(matches!(found, Ok(Response::Data(Some(data), _)) if data == TEXT));
    assert_eq!(client.call(set(ANNOUNCEMENT, "")).await, Err(ErrorCode::NotReadOnly));
    node.stop().await;
}
