//! durable: nodes that find each other by name form one cluster, once, and only when all of those are there
//! who are to form it.

use std::fs;
use std::time::Duration;

use rowlock_client::{Acl, CreateMode};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::command::{finish, rowlock};
use crate::support::{eventually, ports};

/// The exit code for a data folder that cannot be used.
const DATA_FOLDER: i32 = 73;

async fn has_begun(cluster: &Cluster, id: u64) -> bool {
    let status = || async { cluster.status(id).await };
    let status = eventually("it answers", SERVING, status).await;
    status["raft"]["voters"].as_array().is_some_and(|voters| !voters.is_empty())
}

async fn wait_until_said(cluster: &Cluster, id: u64, word: &str) {
    let is_said = || async { cluster.log(id).contains(word).then_some(()) };
    eventually(&format!("node {id} says {word:?}"), SERVING, is_said).await;
}

/// How often the cluster was formed, by all logs.
fn formed(cluster: &Cluster) -> usize {
    cluster.ids().into_iter().map(|id| cluster.log(id).matches("formed the cluster").count()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_know_only_a_name_wait_for_the_last_one_and_form_one_cluster() {
    for late in [1, 3] {
        let mut cluster = Cluster::of_strangers(3, FAST).await;
        let first: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != late).collect();
        for id in &first {
            cluster.start_node(*id);
        }
        for id in &first {
            wait_until_said(&cluster, *id, "found node").await;
            wait_until_said(&cluster, *id, "looking for nodes").await;
        }
        // Two of three are a majority, and begin nothing. That nothing happens cannot be waited for.
        tokio::time::sleep(Duration::from_secs(3)).await;
        for id in &first {
            assert!(!has_begun(&cluster, *id).await, "without node {late}: {}", cluster.log(*id));
        }
        cluster.start_node(late);
        cluster.wait_until_serving().await;
        assert_eq!(formed(&cluster), 1);
        let client = cluster.client().await;
        let created = client.create("/kept", Some("data".into()), CreateMode::Persistent, Acl::open());
        created.await.unwrap();
        // Each comes back by its log, one without the others' addresses in its file, and then all at once.
        for id in cluster.ids() {
            cluster.restart(id).await;
        }
        cluster.kill_all();
        for id in cluster.ids() {
            cluster.start_node(id);
        }
        cluster.wait_until_serving().await;
        cluster.client().await.get("/kept").await.unwrap();
        cluster.wait_for_equal_digests().await;
        assert_eq!(formed(&cluster), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_started_twice_or_lost_its_data_does_not_form_a_second_cluster() {
    let mut cluster = Cluster::of_strangers(3, FAST).await;
    for id in cluster.ids() {
        cluster.start_node(id);
    }
    cluster.wait_until_serving().await;
    // Another node 1, at other addresses and with another folder.
    let file = fs::read_to_string(cluster.config()).unwrap();
    let (head, _) = file.split_once("[[node]]").unwrap();
    let (client, peer, http) = (ports::address(), ports::address(), ports::address());
    let own = format!("[[node]]\nid = 1\nclient = \"{client}\"\npeer = \"{peer}\"\nhttp = \"{http}\"\n");
    fs::write(cluster.folder.join("twice.toml"), format!("{head}{own}")).unwrap();
    let twice = ["serve", "--node", "1", "--config", "twice.toml", "--data", "twice"];
    let mut twice = rowlock(&cluster.folder, &twice);
    let said = tokio::task::spawn_blocking(move || finish(twice.spawn().unwrap())).await.unwrap();
    assert!(
        said.code == DATA_FOLDER && said.err.contains("run under this number"),
        "{} {}",
        said.code,
        said.err
    );
    // And the first one, when its folder is lost.
    cluster.kill(1);
    cluster.wipe(1);
    cluster.start_node(1);
    assert_eq!(cluster.exit_code(1).await, Some(DATA_FOLDER), "{}", cluster.log(1));
    assert_eq!(formed(&cluster), 1);
    cluster.client().await.exists("/").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_beyond_those_who_form_the_cluster_joins_as_a_learner() {
    let mut cluster = Cluster::of_strangers(2, FAST).await;
    cluster.add_learner(3);
    for id in [3, 2, 1] {
        cluster.start_node(id);
    }
    cluster.wait_until_serving().await;
    cluster.wait_for_equal_digests().await;
    let status = cluster.status(3).await.unwrap();
    assert_eq!(status["raft"]["voters"], serde_json::json!([1, 2]));
    assert_eq!(formed(&cluster), 1);
}
