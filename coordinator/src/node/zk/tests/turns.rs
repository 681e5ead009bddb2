//! Tests of clients that send requests without end. They measure accounted work (`env::busy`), not time.
#![allow(clippy::disallowed_methods)] // the clients have a thread of their own

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::busy::{self, TURN_MAX};
use rowlock_env::net::Stream;
use rowlock_env::task::yield_now;
use rowlock_env::turnstile::LIGHT_MAX;
use rowlock_proto::{CreateMode, Request, RequestFrame, Xid, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{Client, connect_request, create, unwatched};
use super::node::Node;

/// Connections on their own thread that send requests without end and read the replies.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn begin(addr: &str, connections: usize, request: &Request) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, addr) = (stop.clone(), addr.to_owned());
        let mut frames = BytesMut::new();
        while frames.len() < 60_000 {
            encode::request(&RequestFrame { xid: Xid(1), request: request.clone() }, &mut frames);
        }
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let one = || request_without_end(&addr, &frames, &stops);
                futures_util::future::join_all((0..connections).map(|_| one())).await;
            });
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

async fn request_without_end(addr: &str, frames: &[u8], stop: &AtomicBool) {
    let mut hello = BytesMut::new();
    encode::connect_request(&connect_request(None), &mut hello);
    let mut stream = Stream::connect(addr, Duration::from_secs(10)).await.unwrap();
    stream.write_all(&hello).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let write = async { while !stop.load(Relaxed) && write.write_all(frames).await.is_ok() {} };
    let read = async {
        let mut answers = vec![0; 64 << 10];
        while !stop.load(Relaxed) && matches!(read.read(&mut answers).await, Ok(1..)) {}
    };
    let stopped = async {
        while !stop.load(Relaxed) {
            rowlock_env::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => {}
        () = write => {}
        () = read => {}
    }
}

/// Returns the maximum work of the node between two turns of its own task during the requests.
async fn longest_lap(node: &Node, requests: u64) -> Duration {
    let received = || node.context.metrics.packets_received_total.get();
    while received() < requests / 10 {
        yield_now().await;
    }
    let (mut longest, mut before) = (Duration::ZERO, busy::done());
    // On a busy machine the clients may send too little at a time for a long turn.
    while received() < requests || longest < LIGHT_MAX && received() < 10 * requests {
        yield_now().await;
        let now = busy::done();
        longest = longest.max(now - std::mem::replace(&mut before, now));
    }
    longest
}

#[tokio::test]
async fn endless_reads_yield_the_thread_after_a_turn_of_each_class() {
    for connections in [1, 20] {
        let node = Node::start().await;
        let mut client = Client::connect(&node).await;
        client.call(create("/x", CreateMode::Persistent)).await.unwrap();
        let flood = Flood::begin(&node.addr, connections, &Request::GetData(unwatched("/x")));
        let longest = longest_lap(&node, 60_000).await;
        // Connections are of two classes. On a busy machine more light turns and the node's own work come
        // between.
        assert!(longest <= 3 * TURN_MAX, "{connections}: {longest:?}");
        assert!(longest >= LIGHT_MAX, "nothing was measured: {longest:?}");
        client.call(create("/y", CreateMode::Persistent)).await.expect("a quiet client is served");
        drop((flood, client));
        while !node.context.registry.is_empty() {
            yield_now().await;
        }
        node.stop().await;
    }
}
