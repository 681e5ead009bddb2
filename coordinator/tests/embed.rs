//! A node inside a program: serves a client, stops, and leaves nothing behind.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, SessionState};
use rowlock_coordinator::{Instant, Node, NodeConfig, NodeId, NotExpired, Role, SessionId};
use rowlock_env::disk::Dir;
use rowlock_env::time;

/// Runs one test at a time: the tests count threads and tasks.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
const SOON: Duration = Duration::from_secs(30);

async fn start(folder: &Path) -> Node {
    start_with(NodeConfig::single(folder)).await
}

async fn start_with(config: NodeConfig) -> Node {
    let node = Node::start(config).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    node
}

async fn client(node: &Node) -> Client {
    let endpoint = node.addresses().client.to_string();
    Client::builder()
        .endpoints(&endpoint)
        .session_timeout(SOON)
        .connect_timeout(SOON)
        .connect()
        .await
        .unwrap()
}

/// Returns the names of this process's storage threads. Excludes the test's own threads, the runtime's
/// threads, and the seven idle threads of sled's pool.
fn threads() -> Vec<String> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let name = |task: std::fs::DirEntry| {
        Dir::open(&task.path())
            .and_then(|dir| dir.read("comm"))
            .map(|name| String::from_utf8_lossy(&name).trim().to_owned())
    };
    let names = tasks.flatten().filter_map(|task| name(task).ok());
    names
        .filter(|name| ["storage", "wal", "snapshot", "history"].iter().any(|ours| name.starts_with(ours)))
        .collect()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        time::sleep(Duration::from_millis(5)).await;
    }
}

async fn leaves_nothing(mut config: NodeConfig, history: bool, may_stay: &str) {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    config.history.enabled = history;
    let node = start_with(config).await;
    let status = node.status().borrow().clone();
    assert_eq!((status.node, status.role, status.leader), (NodeId(1), Role::Leader, Some(NodeId(1))));

    let client = client(&node).await;
    let guard = client.mutex("orders/42").lock().await.unwrap();
    guard.release().await.unwrap();
    client.create("/kept", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    client.close().await.unwrap();
    node.shutdown().await;

    eventually("the tasks have ended", || alive() == before).await;
    let ended = || threads().iter().all(|name| name.starts_with(may_stay));
    eventually("the threads have ended", ended).await;
}

#[tokio::test]
async fn stopped_node_leaves_no_task_and_no_thread() {
    let _turn = TURN.lock().await;
    let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Only nodes start threads with these names.
    let (pool, nothing) = ("sled-io", "nothing is named so");
    let pool_before = threads().iter().any(|name| name.starts_with(pool));
    let may_stay = if pool_before { pool } else { nothing };
    leaves_nothing(NodeConfig::single(without.path()), false, may_stay).await;
    leaves_nothing(NodeConfig::single(with.path()), true, pool).await;
    // The folder is free and contains the written data.
    let node = start(with.path()).await;
    let client = self::client(&node).await;
    assert!(client.exists("/kept").await.unwrap().is_some());
    node.shutdown().await;
}

#[tokio::test]
async fn a_dropped_node_stops_in_the_background_and_frees_its_folder() {
    let _turn = TURN.lock().await;
    let folder = tempfile::tempdir().unwrap();
    drop(start(folder.path()).await);
    let deadline = Instant::now() + SOON;
    let again = loop {
        match Node::start(NodeConfig::single(folder.path())).await {
            Ok(node) => break node,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        time::sleep(Duration::from_millis(5)).await;
    };
    again.shutdown().await;
}

#[tokio::test]
async fn two_nodes_in_one_process_are_independent() {
    let _turn = TURN.lock().await;
    let (left, right) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (start(left.path()).await, start(right.path()).await);
    let (ca, cb) = (client(&a).await, client(&b).await);
    ca.create("/only-here", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    assert!(cb.exists("/only-here").await.unwrap().is_none());
    a.shutdown().await;
    assert!(cb.exists("/").await.unwrap().is_some(), "the other goes on");
    b.shutdown().await;
}

#[tokio::test]
async fn expired_session_is_lost_to_its_client_with_its_locks() {
    let _turn = TURN.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let node = start(folder.path()).await;
    let client = client(&node).await;
    let guard = client.mutex("m").lock().await.unwrap();
    node.expire_session(client.session_id(), Instant::now() + SOON).await.unwrap();
    guard.lost().await;
    assert_eq!(client.state(), SessionState::Expired);
    let gone = node.expire_session(SessionId(77), Instant::now() + SOON).await;
    assert_eq!(gone, Err(NotExpired::NoSession));
    node.shutdown().await;
}

#[test]
fn config_text_without_the_node_is_refused() {
    let text = "[[node]]\nid = 1\nclient = \"127.0.0.1:2181\"\npeer = \"127.0.0.1:2281\"\n";
    let missing = NodeConfig::from_toml(text, Path::new("somewhere"), NodeId(2)).unwrap_err();
    assert!(missing.to_string().contains("id = 2"), "{missing}");
}
