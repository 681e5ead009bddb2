//! replica-equality: a node that missed more than the log still holds comes back by snapshot; a new node
//! joins as a learner.

use rowlock_client::{Acl, Client, CreateMode};

use crate::support::cluster::{Cluster, SERVING};
use crate::support::eventually;

const OFTEN: &str = "[session]\nmin_timeout_ms = 2000\n[raft]\nheartbeat_ms = 60\nelection_timeout_min_ms = 300\n\
                     election_timeout_max_ms = 600\nsnapshot_every = 100\nkeep_logs = 10\n";
const BATCH: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_was_down_past_the_purged_log_returns_by_snapshot_and_a_learner_joins() {
    let mut cluster = Cluster::start(3, OFTEN).await;
    let client = cluster.client().await;
    client.create("/n", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let down = cluster.follower().await;
    cluster.kill(down);

    // The node that is down cannot have more than the leader, whose status may be of before the kill until it
    // shows a later write.
    let leader = cluster.leader().await;
    let mut written = 0;
    write_some(&client, &mut written).await;
    let shown = || async {
        let status = cluster.status(leader).await?;
        status["raft"]["last_log_index"].as_u64().filter(|last| *last >= BATCH as u64)
    };
    let last = eventually("the leader's status shows the writes", SERVING, shown).await;
    while index(&cluster, leader, "purged_index").await <= last {
        write_some(&client, &mut written).await;
        assert!(written < 20_000, "the log is never purged");
    }
    let purged = index(&cluster, leader, "purged_index").await;
    cluster.start_node(down);
    cluster.wait_until_serves(down).await;
    cluster.wait_for_equal_digests().await;
    let snapshot = index(&cluster, down, "snapshot_index").await;
    assert!(
        snapshot >= purged,
        "node {down} has a snapshot up to {snapshot}, the log was purged up to {purged}"
    );

    // A snapshot that was received is one to start from.
    cluster.kill(down);
    write_some(&client, &mut written).await;
    cluster.start_node(down);
    cluster.wait_until_serves(down).await;
    cluster.wait_for_equal_digests().await;

    cluster.add_learner(4);
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    cluster.wait_for_equal_digests().await;
    let leader = cluster.leader().await;
    let learner = || async {
        let status = cluster.status(leader).await?;
        status["raft"]["learners"].as_array()?.iter().any(|id| id == 4).then_some(())
    };
    eventually("the leader counts node 4 as a learner", SERVING, learner).await;
    let status = cluster.status(4).await.unwrap();
    assert_eq!(status["raft"]["role"], "learner");

    // A learner serves clients as any node.
    let of_learner = cluster.client_of(cluster.endpoint(4)).await;
    of_learner.create("/by-learner", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let names = of_learner.get_children("/n").await.unwrap().names;
    assert_eq!(names.len(), written);
}

async fn index(cluster: &Cluster, node: u64, which: &str) -> u64 {
    let found = || async { cluster.status(node).await?["raft"][which].as_u64() };
    eventually(which, SERVING, found).await
}

/// One after the other, so that each is an entry of its own.
async fn write_some(client: &Client, written: &mut usize) {
    for _ in 0..BATCH {
        client
            .create("/n/x", Some("data".into()), CreateMode::PersistentSequential, Acl::open())
            .await
            .unwrap();
        *written += 1;
    }
}
