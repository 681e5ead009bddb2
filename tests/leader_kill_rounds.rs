//! mutual-exclusion, fencing-monotonic, fifo, durable: twenty clients pass one lock around while the leader
//! dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode};
use tokio::task::JoinSet;

use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, secs};

const ROUNDS: usize = 20;
const CLIENTS: usize = 20;
/// The leader dies after this many grants of a round.
const GRANTS_BEFORE_KILL: usize = 7;

struct Grant {
    token: i64,
    granted: Instant,
    released: Instant,
    written: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_clients_pass_a_lock_around_while_the_leader_is_killed_twenty_times() {
    let mut cluster = Cluster::start(3, FAST).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client().await);
    }
    clients[0].create("/done", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let holders = Arc::new(AtomicUsize::new(0));
    let mut grants = Vec::new();
    for round in 0..ROUNDS {
        let granted = Arc::new(AtomicUsize::new(0));
        let mut turns = JoinSet::new();
        for (n, client) in clients.iter().enumerate() {
            let path = format!("/done/{round}-{n}");
            turns.spawn(turn(client.clone(), path, holders.clone(), granted.clone()));
        }
        let enough = || async { (granted.load(Ordering::SeqCst) >= GRANTS_BEFORE_KILL).then_some(()) };
        eventually("the first grants of a round", secs(60), enough).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.start_node(leader);
        // Every waiter is granted, or this does not end in time.
        let all = async {
            while let Some(turn) = turns.join_next().await {
                grants.push(turn.unwrap());
            }
        };
        tokio::time::timeout(secs(60), all)
            .await
            .unwrap_or_else(|_| panic!("round {round}: a waiter is not granted"));
        cluster.wait_until_serves(leader).await;
    }
    assert_eq!(grants.len(), ROUNDS * CLIENTS);
    check_order(&mut grants);
    cluster.wait_for_equal_digests().await;
    check_durable(&cluster, &grants).await;
}

async fn turn(client: Client, path: String, holders: Arc<AtomicUsize>, granted: Arc<AtomicUsize>) -> Grant {
    let guard = client.mutex("orders").lock().await.unwrap();
    let since = Instant::now();
    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
    granted.fetch_add(1, Ordering::SeqCst);
    let token = guard.token().0;
    write(&client, &path, token).await;
    assert!(guard.is_held());
    assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1, "two holders at once");
    let released = Instant::now();
    guard.release().await.unwrap();
    Grant { token, granted: since, released, written: path }
}

/// Repeats the create until it is acknowledged; after a lost connection it may already be there.
async fn write(client: &Client, path: &str, token: i64) {
    loop {
        let data = Some(token.to_string().into());
        match client.create(path, data, CreateMode::Persistent, Acl::open()).await {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => return,
            Err(Error::ConnectionLoss) => {}
            Err(e) => panic!("{path}: {e}"),
        }
    }
}

/// A token is the position of its holder's place in the queue, so tokens that grow in the order of the grants
/// are also grants in the order of the queue.
fn check_order(grants: &mut [Grant]) {
    grants.sort_by_key(|grant| grant.granted);
    for pair in grants.windows(2) {
        assert!(pair[0].token < pair[1].token, "tokens {} and {} go back", pair[0].token, pair[1].token);
        assert!(pair[0].released <= pair[1].granted, "two holders at once by interval");
    }
}

/// Every acknowledged znode is on every node.
async fn check_durable(cluster: &Cluster, grants: &[Grant]) {
    for id in cluster.ids() {
        let client = cluster.client_of(cluster.endpoint(id)).await;
        client.sync("/").await.unwrap();
        let names = client.get_children("/done").await.unwrap().names;
        assert_eq!(names.len(), grants.len(), "node {id}");
        for grant in grants {
            let data = client.get(&grant.written).await.unwrap().data;
            assert_eq!(
                data.as_deref(),
                Some(grant.token.to_string().as_bytes()),
                "{} on node {id}",
                grant.written
            );
        }
    }
}
