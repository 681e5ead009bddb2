//! History of a whole node: served over HTTP, and preserved across a restart.

use std::path::Path;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode};
use rowlock_coordinator::{Instant, Node, NodeConfig};
use rowlock_env::net::Stream;
use rowlock_env::time;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SOON: Duration = Duration::from_secs(30);

/// Starts a node with a snapshot and a log purge every few changes.
async fn start(folder: &Path) -> Node {
    let mut config = NodeConfig::single(folder);
    (config.raft.snapshot_every, config.raft.keep_logs) = (40, 0);
    let node = Node::start(config).await.expect("the node starts");
    node.serving(Instant::now() + SOON).await.expect("it serves");
    node
}

async fn get(node: &Node, path: &str) -> (u16, String) {
    let address = node.addresses().http.to_string();
    let mut stream = Stream::connect(&address, SOON).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    time::timeout(SOON, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

/// Returns all entries except gaps.
async fn history(node: &Node) -> Vec<Value> {
    // Retries on a busy machine: the history yields to all other work.
    let deadline = Instant::now() + SOON;
    loop {
        let (code, body) = get(node, "/v1/history?limit=10000").await;
        if code == 200 {
            let document: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(document["more"], false);
            return document["entries"].as_array().expect("a list").clone();
        }
        assert!(code == 503 && Instant::now() < deadline, "{code}: {body}");
    }
}

async fn client(node: &Node) -> Client {
    let endpoint = node.addresses().client.to_string();
    let builder = Client::builder().endpoints(&endpoint).session_timeout(SOON).connect_timeout(SOON);
    builder.connect().await.expect("it is served")
}

#[tokio::test]
async fn history_survives_restarts_without_gap_or_repeat() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rounds = 0;
    let mut before: Vec<Value> = Vec::new();
    for _ in 0..3 {
        let node = start(folder.path()).await;
        assert_eq!(history(&node).await, before, "what was there is there");
        let client = client(&node).await;
        for _ in 0..25 {
            let guard = client.mutex("orders/42").lock().await.expect("it is free");
            client
                .create(&format!("/{rounds}"), None, CreateMode::Persistent, Acl::open())
                .await
                .expect("new");
            guard.release().await.expect("it is held");
            rounds += 1;
        }
        client.close().await.expect("closed");
        let told = history(&node).await;
        assert_eq!(told[..before.len()], before);
        let steps: Vec<&str> = told.iter().filter_map(|entry| entry["event"].as_str()).collect();
        let expected = ["requested", "granted", "released"].repeat(rounds);
        assert_eq!(steps, expected);
        let token = |entry: &Value| entry["token"].as_str().expect("text").parse::<i64>().expect("a number");
        let tokens: Vec<i64> = told.iter().map(token).collect();
        assert!(tokens.is_sorted());
        before = told;
        node.shutdown().await;
    }
    let lock = before[0]["lock"].as_str().expect("a path").to_owned();
    let node = start(folder.path()).await;
    let client = client(&node).await;
    // Holds the lock: the node sweeps the znode of an idle lock away.
    let guard = client.mutex("orders/42").lock().await.expect("it is free");
    let (code, body) = get(&node, &format!("/v1/queue?lock={}", lock.replace('%', "%25"))).await;
    let queue: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &queue["holder_count"], &queue["lock"]), (200, &1.into(), &lock.into()), "{body}");
    guard.release().await.expect("it is held");
    client.close().await.expect("closed");
    node.shutdown().await;
}
