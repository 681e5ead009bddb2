//! One program on Rowlock and on Apache ZooKeeper: nothing in it knows which of them serves it.
//!
//! On Rowlock the client takes a lock in one round trip, on ZooKeeper by the recipe of several; the program is the same,
//! and so is what it may rely on. `ROWLOCK_TEST_ZK=host:port,...` names the servers of the second run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::test_util::Cluster;
use rowlock_client::{Acl, Client, CreateMode, Error, FencingToken};
use rowlock_env::{rng, task};

use crate::support::{SOON, within};

const WORKERS: usize = 4;
const ROUNDS: usize = 10;

#[tokio::test]
async fn one_program_runs_on_rowlock() {
    let cluster = Cluster::start(3).await;
    program(&cluster.endpoints()).await;
}

#[tokio::test]
async fn the_same_program_runs_on_apache_zookeeper() {
    if let Ok(endpoints) = std::env::var("ROWLOCK_TEST_ZK") {
        program(&endpoints).await;
    }
}

/// What an application does, by sessions of their own.
async fn program(endpoints: &str) {
    let base = format!("/rowlock-portable-{:016x}", rng::u64());
    let mut clients = Vec::new();
    for worker in 0..WORKERS {
        let config =
            Client::builder().endpoints(endpoints).lock_base(&base).label(format!("worker-{worker}"));
        clients.push(config.session_timeout(SOON).connect_timeout(SOON).connect().await.unwrap());
    }
    within("the mutex", mutex(&clients)).await;
    within("the timeout", timeout(&clients)).await;
    within("the counter", counter(&clients)).await;
    within("the latch", latch(&clients)).await;
    for client in clients {
        client.close().await.unwrap();
    }
}

/// Runs the same on each client at once.
async fn all<T, F>(clients: &[Client], work: impl Fn(Client) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = clients.iter().map(|client| task::spawn("worker", work(client.clone()))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// A lost update would show: the number is read and written back without a condition.
async fn mutex(clients: &[Client]) {
    let path = format!("/rowlock-portable-{:016x}", rng::u64());
    clients[0]
        .create(&path, Some(Bytes::from_static(b"0")), CreateMode::Persistent, Acl::open())
        .await
        .unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let work = |client: Client| {
        let (path, order) = (path.clone(), order.clone());
        async move {
            for _ in 0..ROUNDS {
                let guard = client.mutex("orders/42").lock().await.unwrap();
                order.lock().unwrap().push(guard.token());
                let (data, _) = client.get(&path).await.unwrap();
                let number: usize = std::str::from_utf8(&data.unwrap()).unwrap().parse().unwrap();
                client.set(&path, Some((number + 1).to_string().into()), None).await.unwrap();
                guard.release().await.unwrap();
            }
        }
    };
    all(clients, work).await;
    clients[1].sync(&path).await.unwrap();
    let (data, _) = clients[1].get(&path).await.unwrap();
    assert_eq!(data.unwrap(), (WORKERS * ROUNDS).to_string());
    let tokens: Vec<FencingToken> = order.lock().unwrap().clone();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise from holder to holder: {tokens:?}");
    clients[0].delete(&path, None).await.unwrap();
}

async fn timeout(clients: &[Client]) {
    let guard = clients[0].mutex("busy").lock().await.unwrap();
    let other = clients[1].mutex("busy");
    assert!(other.try_lock().await.unwrap().is_none());
    let waited = other.lock_timeout(Duration::from_millis(200)).await;
    assert!(matches!(waited, Err(Error::Timeout { position: Some(1), .. })), "{waited:?}");
    guard.release().await.unwrap();
    // Who gave up waits nowhere: the lock is free.
    let guard = clients[2].mutex("busy").lock().await.unwrap();
    assert!(guard.check().await.unwrap());
    guard.release().await.unwrap();
}

async fn counter(clients: &[Client]) {
    let work = |client: Client| async move {
        for _ in 0..ROUNDS {
            client.counter("hits").add(1).await.unwrap();
        }
    };
    all(clients, work).await;
    assert_eq!(clients[0].counter("hits").add(0).await.unwrap(), (WORKERS * ROUNDS) as i64);
    clients[0].counter("hits").remove().await.unwrap();
}

async fn latch(clients: &[Client]) {
    let count = u32::try_from(clients.len()).unwrap();
    let work = |client: Client| async move {
        let latch = client.latch("ready", count);
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();
    };
    all(clients, work).await;
    clients[0].latch("ready", count).remove().await.unwrap();
}
