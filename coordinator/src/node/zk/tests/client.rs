//! Requests of tests, and connections of test clients.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::net::Stream;
use rowlock_env::time;
pub use rowlock_frames::raw::{Frame, RawClient as Client};
use rowlock_frames::wire;
use rowlock_proto::request::{ConnectRequest, Create, PathWatch, SetData};
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{Acl, CreateMode, Request, Version};
use tokio::io::AsyncReadExt;

use super::node::Node;

/// Deadline of each wait: nothing on loopback takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

impl AsRef<str> for Node {
    fn as_ref(&self) -> &str {
        &self.addr
    }
}

/// Builds a request for a session of ten seconds: a new one, or the given one.
pub fn connect_request(session: Option<&ConnectResponse>) -> ConnectRequest {
    let new = wire::connect_request(10_000);
    session.map_or(new, |opened| ConnectRequest { timeout_ms: 10_000, ..wire::resume_request(opened) })
}

pub fn create(path: &str, mode: CreateMode) -> Request {
    let (path, data) = (path.to_owned(), Some(Bytes::from_static(b"data")));
    Request::Create(Create { path, data, acl: Some(Acl::shared_open()), flags: mode.flags() })
}

pub fn set(path: &str, data: &str) -> Request {
    let data = Some(Bytes::copy_from_slice(data.as_bytes()));
    Request::SetData(SetData { path: path.to_owned(), data, version: Version::ANY })
}

pub fn delete(path: &str) -> Request {
    Request::Delete { path: path.to_owned(), version: Version::ANY }
}

pub fn watched(path: &str) -> PathWatch {
    PathWatch { path: path.to_owned(), watch: true }
}

pub fn unwatched(path: &str) -> PathWatch {
    PathWatch { path: path.to_owned(), watch: false }
}

pub async fn raw(node: &Node) -> Stream {
    Stream::connect(&node.addr, PATIENCE).await.expect("connects")
}

/// Reads everything up to the end of the stream.
pub async fn rest(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset counts as an end here.
    let _ = time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("an end in time");
    all
}
