//! durable: with `promote_after` a learner becomes a voter by itself, and with `remove_dead_after` a dead
//! voter is removed by itself, under load and only while enough voters are left.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::eventually;
use crate::support::load::Cycling;

pub const PROMOTED: &str = "rowlock_autopilot_promoted_total";
const REMOVED: &str = "rowlock_autopilot_removed_total";

fn settings(autopilot: &str) -> String {
    format!("{FAST}[audit]\nfile = \"audit.log\"\n[autopilot]\n{autopilot}")
}

/// The numbers of those who vote, as a leader says.
async fn voters(cluster: &Cluster) -> Option<BTreeSet<u64>> {
    let leader = cluster.leader().await;
    let voters = cluster.status(leader).await?["raft"]["voters"].clone();
    voters.as_array()?.iter().map(serde_json::Value::as_u64).collect()
}

async fn wait_for_voters(cluster: &Cluster, ids: &[u64]) {
    let wanted: BTreeSet<u64> = ids.iter().copied().collect();
    let are_there = || async { (voters(cluster).await.as_ref() == Some(&wanted)).then_some(()) };
    eventually(&format!("{wanted:?} vote"), SERVING, are_there).await;
}

/// What the audit logs of all nodes say of the autopilot.
fn audited(cluster: &Cluster) -> String {
    let read = |id| std::fs::read_to_string(cluster.data(id).join("audit.log")).unwrap_or_default();
    let lines: String = cluster.ids().into_iter().map(read).collect();
    lines.lines().filter(|line| line.contains("autopilot: ")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_votes_by_itself_and_takes_the_place_of_a_dead_one_of_three() {
    let autopilot = "promote_after = \"1s\"\nremove_dead_after = \"5s\"\n";
    let mut cluster = Cluster::start(3, &settings(autopilot)).await;
    let clients = vec![cluster.client().await, cluster.client().await];
    let cycling = Cycling::start(clients, 1);
    let dead = cluster.follower().await;
    cluster.kill(dead);
    let leader = cluster.leader().await;
    // Longer than the time after which it could be removed. That nothing happens cannot be waited for.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(voters(&cluster).await, Some([1, 2, 3].into()), "two voters would be left");
    assert_eq!(cluster.metric(leader, REMOVED).await, 0);
    cluster.add_learner(4);
    cluster.start_node(4);
    let left: Vec<u64> = (1..=4).filter(|id| *id != dead).collect();
    wait_for_voters(&cluster, &left).await;
    cycling.end(&cluster).await;
    let said = audited(&cluster);
    assert!(said.contains("node 4") && said.contains(&format!("node {dead}")), "{said}");
    cluster.lose(dead);
    assert_eq!(cluster.metric_of_all(PROMOTED).await, 1);
    assert_eq!(cluster.metric_of_all(REMOVED).await, 1);
    cluster.wait_for_equal_digests().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_voter_of_five_is_removed_and_another_one_until_three_are_left() {
    let mut cluster = Cluster::start(5, &settings("remove_dead_after = \"5s\"\n")).await;
    let clients = vec![cluster.client().await, cluster.client().await];
    let cycling = Cycling::start(clients, 1);
    let mut left: Vec<u64> = cluster.ids();
    for leads in [true, false] {
        let dead = if leads { cluster.leader().await } else { cluster.follower().await };
        cluster.kill(dead);
        left.retain(|id| *id != dead);
        wait_for_voters(&cluster, &left).await;
    }
    cycling.end(&cluster).await;
    assert_eq!(cluster.metric_of_all(REMOVED).await, 2);
    let said = audited(&cluster);
    assert_eq!(said.matches("\"op\":\"remove\"").count(), 2, "{said}");
}
