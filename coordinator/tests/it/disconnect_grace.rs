//! A client that is killed: how soon its session is over, on which node of a cluster ever it was connected.

use std::time::Duration;

use crate::support::{SOON, cluster, in_time, session};
use bytes::{Bytes, BytesMut};
use rowlock_coordinator::{Instant, Node};
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::lock::SessionOptions;
use rowlock_proto::{Request, RequestFrame, SessionId, Xid, decode, encode, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GRACE: Duration = Duration::from_millis(500);

/// The next frame that the node sends.
async fn next(stream: &mut Stream, input: &mut BytesMut) -> Bytes {
    loop {
        if let Some(frame) = frame::split(input, 1 << 20).expect("a frame") {
            return frame;
        }
        assert!(stream.read_buf(input).await.expect("it goes on") > 0, "the node hung up");
    }
}

/// A connection with a session of 30 s that has asked for the grace, and has been answered.
async fn connect(node: &Node) -> Stream {
    let mut stream = Stream::connect(&node.addresses().client.to_string(), SOON).await.expect("it listens");
    let mut out = session::connect_request();
    let options = SessionOptions { disconnect_grace_ms: GRACE.as_millis() as u32 };
    encode::request(&RequestFrame { xid: Xid(1), request: Request::SessionOptions(options) }, &mut out);
    stream.write_all(&out).await.expect("sent");
    let mut input = BytesMut::new();
    let opened = decode::connect_response(next(&mut stream, &mut input).await).expect("an answer");
    assert_ne!(opened.session_id, SessionId::NONE);
    let header = decode::reply_header(&mut next(&mut stream, &mut input).await).expect("an answer");
    assert_eq!((header.xid, header.err), (Xid(1), None));
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_clients_session_ends_after_its_grace_on_whichever_node_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes = cluster(folder.path()).await;
    let expired = nodes[0].metrics();
    for (at, node) in nodes.iter().enumerate() {
        let before = expired.sessions_expired_total.get();
        let client = connect(node).await;
        let killed = Instant::now();
        drop(client);
        let over = async {
            while expired.sessions_expired_total.get() == before {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time("the end of the session", over).await;
        let took = killed.elapsed();
        assert!(took >= GRACE, "node {at}: {took:?} is less than the client counts on");
        println!("node {at}: over after {took:?}");
    }
    for node in nodes {
        node.shutdown().await;
    }
}
