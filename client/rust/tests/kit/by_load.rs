//! Sessions at work are served by the leader while it has room.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rowlock_client::Client;
use rowlock_env::net::Stream;
use rowlock_env::{task, time};
use rowlock_testkit::{Cluster, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{SOON, within};

const CLIENTS: usize = 10;
/// What the leader lets in per second, and at once: `MOVES_PER_SECOND` of the coordinator.
const MOVES_PER_SECOND: u64 = 100;

/// Lets in `super:test` as the superuser.
fn with_superuser(config: &mut NodeConfig) {
    config.client.super_digest = Some("super:D/InIHSb7yEEbrWz8b9l71RjZJU=".to_owned());
}

/// A figure of a node, by HTTP.
async fn figure(cluster: &Cluster, node: usize, name: &str) -> u64 {
    let mut http = Stream::connect(&cluster.http(node).unwrap(), SOON).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    http.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// How many of the node's clients have a connection here.
async fn until_all_are_at(cluster: &Cluster, node: usize) {
    let begun = time::now();
    loop {
        let mut at = Vec::new();
        for node in 0..cluster.nodes() {
            at.push(figure(cluster, node, "rowlock_connections").await as usize);
        }
        if at[node] == CLIENTS {
            return;
        }
        assert!(begun.elapsed() < SOON, "node {node} leads, clients: {at:?}");
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// Takes and releases a lock of its own some times a second, until it is told to stop.
async fn work(client: Client, lock: usize, stop: Arc<AtomicBool>) -> Client {
    let (session, mutex) = (client.session_id(), client.mutex(format!("l{lock}")));
    while !stop.load(Relaxed) {
        let guard = within("a lock", mutex.lock()).await.unwrap();
        time::sleep(Duration::from_millis(5)).await;
        assert!(guard.is_held(), "a move lost a lock");
        within("a release", guard.release()).await.unwrap();
        time::sleep(Duration::from_millis(15)).await;
    }
    assert_eq!(client.session_id(), session);
    client
}

#[tokio::test]
async fn clients_at_work_gather_at_the_leader_and_follow_the_lead_without_a_lost_session() {
    let (cluster, begun) = (Cluster::start_with(3, with_superuser).await, time::now());
    let stop = Arc::new(AtomicBool::new(false));
    let mut working = Vec::new();
    for lock in 0..CLIENTS {
        working.push(task::spawn("worker", work(cluster.client().await, lock, stop.clone())));
    }
    let old = cluster.leader().await;
    until_all_are_at(&cluster, old).await;

    let here = cluster.endpoint(old);
    let operator = cluster.client_with(|it| it.endpoints(here).auth("digest", &b"super:test"[..])).await;
    within("a hand-over", operator.operate("/v1/hand-over")).await.unwrap();
    operator.close().await.unwrap();
    let others: Vec<usize> = (0..3).filter(|node| *node != old).collect();
    let new = cluster.leader_among(&others).await;
    until_all_are_at(&cluster, new).await;
    let mut invited = 0;
    for node in 0..3 {
        invited += figure(&cluster, node, "rowlock_sessions_invited_total").await;
    }
    // A client whose connection broke may be where it belongs without one.
    assert!(invited > 0 && invited <= MOVES_PER_SECOND * (2 + begun.elapsed().as_secs()), "{invited}");

    stop.store(true, Relaxed);
    for client in working {
        within("the end of the work", client).await.unwrap().close().await.unwrap();
    }
}
