//! The recipes under contention: one program of several clients at once, on the servers of
//! [`crate::stories`]. Nothing in the program knows which of them serves it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode, Error, FencingToken};
use rowlock_env::{rng, task};
use rowlock_testkit::Cluster;

use crate::fake::Fake;
use crate::stories::{PATIENCE, within};

const WORKERS: usize = 4;
const ROUNDS: usize = 10;

#[tokio::test]
async fn recipes_keep_their_promises_under_contention_on_the_fakes_and_on_nodes() {
    program(&Fake::start().await.endpoint).await;
    program(&Fake::rowlock().await.endpoint).await;
    program(&Cluster::start(3).await.endpoints()).await;
}

#[tokio::test]
async fn recipes_keep_their_promises_under_contention_on_apache_zookeeper() {
    if let Ok(endpoints) = std::env::var("ROWLOCK_TEST_ZK") {
        program(&endpoints).await;
    }
}

/// Counts who is inside, from all clients.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    /// Stays for a few turns of the runtime; gives how many there were.
    async fn visit(&self) -> usize {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        now
    }
}

/// Runs the parts of the program, with several sessions.
async fn program(endpoints: &str) {
    let base = format!("/rowlock-portable-{:016x}", rng::u64());
    let mut clients = Vec::new();
    for worker in 0..WORKERS {
        let config =
            Client::builder().endpoints(endpoints).lock_base(&base).label(format!("worker-{worker}"));
        clients.push(config.session_timeout(PATIENCE).connect_timeout(PATIENCE).connect().await.unwrap());
    }
    within("the mutex", mutex(&clients)).await;
    within("the counter", counter(&clients)).await;
    within("the latch", latch(&clients)).await;
    within("the double barrier", double_barrier(&clients)).await;
    within("the read-write lock", read_write(&clients)).await;
    within("the semaphore", semaphore(&clients)).await;
    within("several locks", several(&clients)).await;
    within("the fenced write", fenced(&clients)).await;
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
                let data = client.get(&path).await.unwrap().data;
                let number: usize = std::str::from_utf8(&data.unwrap()).unwrap().parse().unwrap();
                client.set(&path, Some((number + 1).to_string().into()), None).await.unwrap();
                guard.release().await.unwrap();
            }
        }
    };
    all(clients, work).await;
    clients[1].sync(&path).await.unwrap();
    let data = clients[1].get(&path).await.unwrap().data;
    assert_eq!(data.unwrap(), (WORKERS * ROUNDS).to_string());
    let tokens: Vec<FencingToken> = order.lock().unwrap().clone();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise from holder to holder: {tokens:?}");
    clients[0].delete(&path, None).await.unwrap();
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

async fn double_barrier(clients: &[Client]) {
    let work = |client: Client| async move {
        let (barrier, entered, left) = (
            client.double_barrier("step", WORKERS as u32),
            client.counter("entered"),
            client.counter("left"),
        );
        for round in 1..=ROUNDS as i64 {
            let inside = barrier.enter().await.unwrap();
            assert_eq!(left.get().await, Ok(WORKERS as i64 * (round - 1)), "a member is in the round before");
            entered.add(1).await.unwrap();
            left.add(1).await.unwrap();
            inside.leave().await.unwrap();
            assert_eq!(entered.get().await, Ok(WORKERS as i64 * round), "a member left before all were done");
        }
    };
    all(clients, work).await;
}

async fn read_write(clients: &[Client]) {
    let (writers, readers) = (Arc::new(Inside::default()), Arc::new(Inside::default()));
    let work = |client: Client| {
        let (writers, readers) = (writers.clone(), readers.clone());
        async move {
            let lock = client.rwlock("price");
            for _ in 0..ROUNDS / 2 {
                let writer = lock.write().await.unwrap();
                assert_eq!(
                    (writers.visit().await, readers.now.load(Ordering::SeqCst)),
                    (1, 0),
                    "a writer is alone"
                );
                writer.release().await.unwrap();
                let reader = lock.read().await.unwrap();
                readers.visit().await;
                assert_eq!(writers.now.load(Ordering::SeqCst), 0, "no writer beside readers");
                reader.release().await.unwrap();
            }
        }
    };
    all(clients, work).await;
}

async fn semaphore(clients: &[Client]) {
    let inside = Arc::new(Inside::default());
    let work = |client: Client| {
        let inside = inside.clone();
        async move {
            for _ in 0..ROUNDS / 2 {
                let permit = client.semaphore("downloads", 2).acquire().await.unwrap();
                inside.visit().await;
                permit.release().await.unwrap();
            }
        }
    };
    all(clients, work).await;
    assert!(inside.most.load(Ordering::SeqCst) <= 2);
}

async fn several(clients: &[Client]) {
    let inside = Arc::new(Inside::default());
    let turn = AtomicUsize::new(0);
    let work = |client: Client| {
        let inside = inside.clone();
        let names = if turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
            ["left", "right"]
        } else {
            ["right", "left"]
        };
        async move {
            for _ in 0..ROUNDS / 2 {
                let both = client.lock_all(names).await.unwrap();
                assert_eq!(inside.visit().await, 1);
                both.release().await.unwrap();
            }
        }
    };
    all(clients, work).await;
}

/// A fenced write is refused when the lock is gone, also by a session that lives.
async fn fenced(clients: &[Client]) {
    let path = format!("/rowlock-portable-{:016x}", rng::u64());
    let guard = clients[0].mutex("fenced").lock().await.unwrap();
    let create = || guard.txn().create(&path, None, CreateMode::Persistent, Acl::open());
    clients[0].commit(create()).await.unwrap();
    clients[0].delete(&path, None).await.unwrap();
    let late = create();
    guard.release().await.unwrap();
    let refused = clients[0].commit(late).await;
    assert!(matches!(refused, Err(Error::TransactionRejected { index: 0, .. })), "{refused:?}");
}
