//! A node at its memory limit refuses growing writes with a clear error and accepts shrinking writes.

#![allow(clippy::unwrap_used)]

use rowlock_client::{Acl, Client, ConnectError, CreateMode};
use rowlock_coordinator::{Instant, Node, NodeConfig};
use rowlock_env::time;
use std::time::Duration;

/// Longer than all steps on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const LIMIT: u64 = 64 << 20;
const LARGE: usize = 900_000;

async fn client(node: &Node) -> Result<Client, ConnectError> {
    let endpoint = node.addresses().client.to_string();
    Client::builder().endpoints(&endpoint).session_timeout(SOON).connect_timeout(SOON).connect().await
}

fn held(node: &Node) -> u64 {
    node.metrics().memory_bytes.get().iter().map(|(_, bytes)| bytes).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_leader_refuses_growth_and_accepts_shrinking_writes() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::single(folder.path());
    config.limits.memory_bytes = Some(LIMIT);
    let node = Node::start(config).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    let writer = client(&node).await.unwrap();
    let guard = writer.mutex("held").lock().await.unwrap();

    let create = |at: usize| {
        let (writer, data) = (&writer, vec![7; LARGE].into());
        async move {
            writer.create(&format!("/large-{at}"), Some(data), CreateMode::Persistent, Acl::open()).await
        }
    };
    let mut made = 0;
    let refused = loop {
        match create(made).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100, "the state has grown beyond the limit");
    };
    assert!(refused.to_string().contains("memory limit"), "{refused}");
    let parts = node.metrics().memory_bytes.get();
    assert!(held(&node) < LIMIT + (4 << 20), "{parts:?}");
    assert!(node.metrics().growth_refused_total.get() > 0);

    assert!(writer.exists("/large-0").await.unwrap().is_some(), "a read");
    writer.set("/large-0", Some(vec![8; LARGE].into()), None).await.expect("no more than there was");
    guard.release().await.expect("a release");
    for at in 0..made {
        writer.delete(&format!("/large-{at}"), None).await.expect("a delete");
    }
    let deadline = Instant::now() + SOON;
    while let Err(error) = create(made).await {
        assert!(Instant::now() < deadline, "there is room again: {error}");
        time::sleep(Duration::from_millis(10)).await;
    }
    assert!(client(&node).await.is_ok());
    node.shutdown().await;
}
