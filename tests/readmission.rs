//! durable: with `readmit_wiped` a node that comes back without its data is taken out of the members and in
//! again, under its old number and under load, and no acknowledged write is lost.

use rowlock_client::{Acl, Client, CreateMode};

use crate::autopilot::PROMOTED;
use crate::members::{SUPER, done};
use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::eventually;
use crate::support::load::Cycling;

/// The exit code for a data folder that cannot be used.
const DATA_FOLDER: i32 = 73;
const WRITES: usize = 40;

fn settings() -> String {
    format!("{FAST}snapshot_every = 50\nkeep_logs = 5\n[autopilot]\nreadmit_wiped = true\n")
}

async fn write(client: &Client, name: &str) {
    for n in 0..WRITES {
        let path = format!("/{name}-{n}");
        let created = client.create(&path, Some("data".into()), CreateMode::Persistent, Acl::open());
        created.await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

async fn verify(cluster: &Cluster, id: u64, name: &str) {
    let client = cluster.client_of(cluster.endpoint(id)).await;
    client.sync("/").await.unwrap();
    for n in 0..WRITES {
        let path = format!("/{name}-{n}");
        client.get(&path).await.unwrap_or_else(|error| panic!("{path} on node {id}: {error}"));
    }
}

/// Whether the leader counts it among the voters.
async fn wait_until_votes(cluster: &Cluster, id: u64) {
    let votes = || async {
        let leader = cluster.leader().await;
        let voters = cluster.status(leader).await?["raft"]["voters"].clone();
        voters.as_array()?.iter().any(|voter| voter == id).then_some(())
    };
    eventually("it votes again", SERVING, votes).await;
}

fn wipe_and_start(cluster: &mut Cluster, id: u64) {
    cluster.kill(id);
    cluster.wipe(id);
    cluster.start_node(id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_three_wiped_nodes_votes_again_under_load_one_after_the_other() {
    let mut cluster = Cluster::start(3, &settings()).await;
    let client = cluster.client().await;
    write(&client, "before").await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(cluster.client().await);
    }
    let cycling = Cycling::start(clients, 1);
    // A follower, the leader, and the last node.
    let leader = cluster.leader().await;
    let mut order: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    order.insert(1, leader);
    for id in order {
        wipe_and_start(&mut cluster, id);
        let back = || async { cluster.log(id).contains("this node votes again").then_some(()) };
        eventually("it says that it votes again", SERVING, back).await;
        wait_until_votes(&cluster, id).await;
        cluster.wait_until_serves(id).await;
    }
    cycling.end(&cluster).await;
    for id in cluster.ids() {
        verify(&cluster, id, "before").await;
    }
    cluster.wait_for_equal_digests().await;
    // Its vote counts: with it, one of the others is enough.
    cluster.kill(3);
    write(&client, "after").await;
    verify(&cluster, 1, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_wiped_nodes_of_three_are_not_taken_in_and_are_told_what_to_do() {
    let mut cluster = Cluster::start(3, &settings()).await;
    let client = cluster.client().await;
    write(&client, "w").await;
    cluster.wait_for_equal_digests().await;
    let before = cluster.status(1).await.unwrap()["state"]["znodes"].as_u64().unwrap();
    for id in [2, 3] {
        cluster.kill(id);
        cluster.wipe(id);
    }
    for id in [2, 3] {
        cluster.start_node(id);
    }
    for id in [2, 3] {
        assert_eq!(cluster.exit_code(id).await, Some(DATA_FOLDER), "{}", cluster.log(id));
        let log = cluster.log(id);
        assert!(log.contains("the others are no majority") && log.contains("rowlock recover"), "{log}");
    }
    let after = cluster.status(1).await.unwrap()["state"]["znodes"].as_u64().unwrap();
    assert!(after >= before, "nothing is lost where the data is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_wiped_nodes_of_five_vote_again_one_after_the_other() {
    let mut cluster = Cluster::start(5, &settings()).await;
    let client = cluster.client().await;
    write(&client, "w").await;
    let leader = cluster.leader().await;
    let wiped: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != leader).take(2).collect();
    for id in &wiped {
        cluster.kill(*id);
        cluster.wipe(*id);
    }
    for id in &wiped {
        cluster.start_node(*id);
    }
    for id in &wiped {
        wait_until_votes(&cluster, *id).await;
        cluster.wait_until_serves(*id).await;
        verify(&cluster, *id, "w").await;
    }
    cluster.wait_for_equal_digests().await;
}

/// The node does not ask for its vote: its section in `cluster.toml` says `learner = true`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_voter_that_an_operator_added_votes_again() {
    // Not `FAST`: on a busy machine the leader may change, and the next leader does not know of the vote.
    let mut cluster = Cluster::start(3, &format!("{SUPER}[autopilot]\nreadmit_wiped = true\n")).await;
    cluster.add_learner(4);
    let (peer, client) = (cluster.peer(4).to_owned(), cluster.endpoint(4).to_owned());
    done(&cluster, &["add", "4", "--peer", &peer, "--client", &client]).await;
    cluster.start_node(4);
    cluster.wait_until_serves(4).await;
    done(&cluster, &["promote", "4"]).await;
    wipe_and_start(&mut cluster, 4);
    let promoted = async || (cluster.metric_of_all(PROMOTED).await > 0).then_some(());
    eventually("the leader gives the vote back", SERVING, promoted).await;
    wait_until_votes(&cluster, 4).await;
}
