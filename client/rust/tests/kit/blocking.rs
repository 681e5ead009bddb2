//! The kit without async code around it: its nodes run on threads of their own.

use std::time::Duration;

use rowlock_client::Client as Builder;
use rowlock_client::blocking::Client;
use rowlock_testkit::Cluster;

use crate::support::SHORT;

/// The runtime that started the cluster is gone when this returns; the cluster stays.
fn start(nodes: usize) -> Cluster {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Cluster::start(nodes))
}

fn client(cluster: &Cluster, session_timeout: Duration) -> Client {
    Client::connect(Builder::builder().endpoints(&cluster.endpoints()).session_timeout(session_timeout))
        .unwrap()
}

#[test]
fn a_cluster_outlives_the_runtime_that_started_it_and_serves_blocking_clients() {
    let cluster = start(1);
    let alice = client(&cluster, SHORT);
    let bob = client(&cluster, Duration::from_secs(10));
    let guard = alice.mutex("m").lock().unwrap();
    cluster.isolate_session(alice.session_id());
    let next = bob.mutex("m").lock_timeout(Duration::from_secs(30)).unwrap();
    assert!(!guard.is_held(), "known before the next one was granted the lock");
    assert!(next.token() > guard.token());
    next.release().unwrap();
    bob.close().unwrap();
}
