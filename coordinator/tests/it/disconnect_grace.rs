//! Killed clients: time until their session ends, for a connection to each node of a cluster.

use std::time::Duration;

use crate::support::{cluster, in_time};
use rowlock_coordinator::{Instant, Node};
use rowlock_env::time;
use rowlock_frames::raw::RawClient;
use rowlock_proto::Request;
use rowlock_proto::lock::SessionOptions;

const GRACE: Duration = Duration::from_millis(500);

/// Opens a connection with a session of 30 s and a granted disconnect grace.
async fn connect(node: &Node) -> RawClient {
    let mut client = RawClient::attach(node.addresses().client.to_string(), 30_000).await;
    let options = SessionOptions { disconnect_grace_ms: GRACE.as_millis() as u32 };
    client.call(Request::SessionOptions(options)).await.expect("the grace is granted");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_clients_session_ends_after_its_grace_on_any_node() {
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
