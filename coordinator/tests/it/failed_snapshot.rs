//! A failed snapshot does not stop a node, and the node writes the next snapshot.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods)] // the tests spoil a folder behind env's back

use std::path::{Path, PathBuf};
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode};
use rowlock_coordinator::{Instant, Node, NodeConfig};
use rowlock_env::time;

const SOON: Duration = Duration::from_secs(30);

async fn start(config: NodeConfig) -> (Node, Client) {
    let node = Node::start(config).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    let endpoint = node.addresses().client.to_string();
    let client = Client::builder().endpoints(&endpoint).connect_timeout(SOON).connect().await.unwrap();
    (node, client)
}

async fn create(client: &Client, path: &str) {
    client.create(path, None, CreateMode::Persistent, Acl::open()).await.unwrap();
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        time::sleep(Duration::from_millis(5)).await;
    }
}

/// Replaces the folder of the snapshots by a file until dropped.
struct Blocked {
    folder: PathBuf,
    aside: PathBuf,
}

impl Blocked {
    fn new(data: &Path) -> Self {
        let (folder, aside) = (data.join("snapshots"), data.join("snapshots.aside"));
        std::fs::rename(&folder, &aside).unwrap();
        std::fs::write(&folder, "a file").unwrap();
        Blocked { folder, aside }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        std::fs::remove_file(&self.folder).unwrap();
        std::fs::rename(&self.aside, &self.folder).unwrap();
    }
}

#[tokio::test]
async fn failed_snapshot_does_not_stop_the_node_and_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::single(folder.path());
    config.raft.snapshot_every = 100;
    // The first snapshot is due at entry 39; a node starts with far fewer entries.
    let (node, client) = start(config).await;
    let blocked = Blocked::new(folder.path());
    for number in 0..100 {
        create(&client, &format!("/before-{number}")).await;
    }
    let metrics = node.metrics();
    until("a snapshot fails", || metrics.snapshots_failed_total.get() > 0).await;
    drop(blocked);
    create(&client, "/after").await;
    let status = node.status();
    until("the next one is written", || status.borrow().snapshot_index >= 100).await;
    assert_eq!((metrics.snapshots_failed_total.get(), metrics.snapshots_written_total.get()), (1, 1));
    create(&client, "/at-last").await;
    client.close().await.unwrap();
    node.shutdown().await;
}

#[tokio::test]
async fn failed_snapshot_is_reported_and_raft_learns_written_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (node, client) = start(NodeConfig::single(folder.path())).await;
    let blocked = Blocked::new(folder.path());
    for round in 0..2 {
        let error = node.take_snapshot().await.unwrap_err().to_string();
        assert!(error.contains(".tmp"), "{error}");
        create(&client, &format!("/after-{round}")).await;
    }
    assert_eq!(node.status().borrow().snapshot_index, 0);
    drop(blocked);
    let written = node.take_snapshot().await.unwrap();
    let status = node.status();
    until("Raft hears of the snapshot", || status.borrow().snapshot_index >= written).await;
    create(&client, "/at-last").await;
    client.close().await.unwrap();
    node.shutdown().await;
}
