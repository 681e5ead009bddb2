//! Tests of the znode with the node's extensions of ZooKeeper's protocol.

use bytes::Bytes;
use rowlock_proto::Request;
use rowlock_proto::lock::ANNOUNCEMENT;
use rowlock_proto::request::ReadOp;
use rowlock_proto::response::{OpResult, Response};

use super::client::{Client, unwatched};
use super::node::Node;

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
