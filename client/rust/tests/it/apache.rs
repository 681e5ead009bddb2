//! Against servers that really exist, when `ROWLOCK_TEST_ZK=host:port,...` names them (Apache ZooKeeper or
//! Rowlock). Without it these tests have nothing to say and pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rowlock_client::{
    Acl, Client, CreateMode, Created, Error, ErrorCode, EventType, Outcome, SessionState, Transaction,
    Version, Watched,
};
use rowlock_env::{rng, task, time};

/// Longer than the session timeout below.
const LONG_HOLD: Duration = Duration::from_secs(7);

pub async fn client() -> Option<Client> {
    let endpoints = std::env::var("ROWLOCK_TEST_ZK").ok()?;
    let base = format!("/rowlock-client-test-{:016x}", rng::u64());
    let config =
        Client::builder().endpoints(&endpoints).session_timeout(Duration::from_secs(6)).lock_base(base);
    Some(config.connect().await.unwrap())
}

#[tokio::test]
async fn real_servers_grant_the_mutex_in_order_with_one_wake_up_each() {
    let Some(first) = client().await else { return };
    let name = format!("name-{:016x}", rng::u64());
    let path = format!("/rowlock-client-test/{name}");
    let mut guard = first.mutex_at(&path).lock().await.unwrap();
    let mut waiters = Vec::new();
    for position in 1..=20 {
        let other = client().await.unwrap();
        let mutex = other.mutex_at(&path);
        waiters.push(task::spawn("waiter", async move { mutex.lock().await }));
        while first.get_children(&path).await.unwrap().names.len() <= position {}
    }
    for (waiter, position) in waiters.into_iter().zip(1..) {
        let token = guard.token();
        assert_eq!(guard.release().await, Ok(()));
        guard = waiter.await.unwrap().unwrap();
        assert!(guard.token() > token);
        assert_eq!(guard.wait_stats().position, position);
        assert!(guard.wait_stats().wakeups <= 1);
    }
    guard.release().await.unwrap();
    assert!(first.mutex_at(&path).try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn real_servers_answer_every_znode_call() {
    let Some(client) = client().await else { return };
    let root = format!("/rowlock-client-test-{:016x}", rng::u64());
    let at = |name: &str| format!("{root}/{name}");
    client.create(&root, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let Created { path, stat } = client
        .create(&at("e-"), Some(Bytes::new()), CreateMode::EphemeralSequential, Acl::open())
        .await
        .unwrap();
    assert_eq!((path.clone(), stat.ephemeral_owner), (at("e-0000000000"), client.session_id()));
    assert_eq!(client.get(&root).await.unwrap().data, None);
    assert_eq!(client.get(&path).await.unwrap().data, Some(Bytes::new()));
    assert_eq!(client.get_ephemerals(&root).await.unwrap(), std::slice::from_ref(&path));
    assert_eq!(client.get_acl(&path).await.unwrap().acl, Acl::open());
    client.set_acl(&path, Acl::open(), Some(Version(0))).await.unwrap();
    let mut watch = client.get_watched(&path).await.unwrap().watch;
    client.set(&path, Some(Bytes::from_static(b"x")), Some(Version(0))).await.unwrap();
    assert_eq!(watch.changed().await.unwrap().event_type, EventType::NodeDataChanged);
    let Watched { value: none, mut watch } = client.exists_watched(&at("t")).await.unwrap();
    assert_eq!(none, None);
    let transaction = Transaction::new()
        .check(&root, None)
        .create(at("t"), None, CreateMode::Persistent, Acl::open())
        .set(at("t"), Some(Bytes::from_static(b"y")), Some(Version(0)))
        .delete(&path, None);
    let outcomes = client.commit(transaction).await.unwrap();
    assert!(
        matches!(&outcomes[..], [Outcome::Checked, Outcome::Created(t, _), Outcome::Set(_), Outcome::Deleted] if *t == at("t"))
    );
    assert_eq!(watch.changed().await.unwrap().event_type, EventType::NodeCreated);
    let refused = client.commit(Transaction::new().delete(at("t"), None).delete(at("none"), None)).await;
    assert_eq!(refused, Err(Error::TransactionRejected { index: 1, code: ErrorCode::NoNode }));
    assert_eq!(client.get_children(&root).await.unwrap().names, ["t"]);
    client.sync(&root).await.unwrap();
    client.add_auth("digest", "user:secret").await.unwrap();
    client.delete(&at("t"), None).await.unwrap();
    client.delete(&root, None).await.unwrap();
    client.close().await.unwrap();
    assert_eq!(client.state(), SessionState::Closed);
}

/// What all workers of the test below see: whether a worker is inside, the highest token, how often each
/// thing happened.
#[derive(Default)]
struct Inside {
    occupied: AtomicBool,
    token: AtomicI64,
    grants: AtomicU64,
    lost: AtomicU64,
    expired: AtomicU64,
}

/// Runs for `ROWLOCK_TEST_SECONDS` (1 unless set), so that servers can be killed and restarted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_servers_and_local_deadlines_keep_the_mutex_exclusive() {
    if client().await.is_none() {
        return;
    }
    let seconds = std::env::var("ROWLOCK_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = time::now() + Duration::from_secs(seconds);
    let path = format!("/rowlock-client-test/exclusive-{:016x}", rng::u64());
    let inside = Arc::new(Inside::default());
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (path, inside) = (path.clone(), inside.clone());
            task::spawn("worker", async move {
                let mut client = client().await.unwrap();
                while time::now() < end {
                    if work(&client, &path, &inside).await.is_err() {
                        inside.expired.fetch_add(1, Ordering::Relaxed);
                        client = loop {
                            if let Ok(fresh) = client.renew().await {
                                break fresh;
                            }
                        };
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} grants in {seconds} s, {} lost while held, {} sessions expired",
        count(&inside.grants),
        count(&inside.lost),
        count(&inside.expired)
    );
    assert!(count(&inside.grants) > 0);
}

async fn work(client: &Client, path: &str, inside: &Inside) -> Result<(), Error> {
    let guard = client.mutex_at(path).lock().await?;
    assert!(!inside.occupied.swap(true, Ordering::SeqCst), "two holders");
    let before = inside.token.swap(guard.token().0, Ordering::SeqCst);
    assert!(guard.token().0 > before, "token {:#x} after {before:#x}", guard.token().0);
    // Holds longer than the session timeout now and then: outages meet them.
    let long = inside.grants.fetch_add(1, Ordering::Relaxed) % 4 == 3;
    let hold = if long { LONG_HOLD } else { Duration::from_millis(1) };
    let result = guard.run(time::sleep(hold)).await;
    inside.occupied.store(false, Ordering::SeqCst);
    match result {
        Ok(()) => {
            let _ = guard.release().await;
            Ok(())
        }
        Err(_) => {
            inside.lost.fetch_add(1, Ordering::Relaxed);
            Err(Error::SessionExpired)
        }
    }
}
