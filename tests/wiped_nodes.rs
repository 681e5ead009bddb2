//! durable: a node that comes back under its old number without its data, or with an older copy of it, takes
//! no part, says why, and costs no acknowledged write. `just wiped` runs many rounds of each.

use std::path::Path;

use rowlock_client::{Acl, Client, CreateMode};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::eventually;

/// The exit code for a data folder that cannot be used.
const DATA_FOLDER: i32 = 73;
const WRITES: usize = 40;
const REFUSED: &str = "is not the one by which node";
const WAITS: &str = "this node takes no part before these nodes have answered";

fn rounds() -> usize {
    std::env::var("WIPED_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

fn often() -> String {
    FAST.to_owned() + "snapshot_every = 50\nkeep_logs = 5\n"
}

struct Round {
    cluster: Cluster,
    client: Client,
    acknowledged: Vec<String>,
}

impl Round {
    async fn begin(settings: &str) -> Round {
        let cluster = Cluster::start(3, settings).await;
        let client = cluster.client().await;
        Round { cluster, client, acknowledged: Vec::new() }
    }

    /// One after the other, each an entry of its own.
    async fn write(&mut self, count: usize) {
        for _ in 0..count {
            let path = format!("/w{}", self.acknowledged.len());
            let created = self.client.create(&path, Some("data".into()), CreateMode::Persistent, Acl::open());
            created.await.unwrap_or_else(|error| panic!("{path}: {error}"));
            self.acknowledged.push(path);
        }
    }

    /// Every acknowledged write is on every node that runs.
    async fn verify(&self, nodes: &[u64]) {
        for id in nodes {
            self.cluster.wait_until_serves(*id).await;
            let client = self.cluster.client_of(self.cluster.endpoint(*id)).await;
            client.sync("/").await.unwrap();
            for path in &self.acknowledged {
                client.get(path).await.unwrap_or_else(|error| panic!("{path} on node {id}: {error}"));
            }
        }
        self.cluster.wait_for_equal_digests().await;
    }

    async fn others(&self) -> (u64, u64, u64) {
        let leader = self.cluster.leader().await;
        let mut rest = self.cluster.ids().into_iter().filter(|id| *id != leader);
        (leader, rest.next().unwrap(), rest.next().unwrap())
    }

    async fn expect_refusal(&mut self, id: u64, words: &str) {
        assert_eq!(self.cluster.exit_code(id).await, Some(DATA_FOLDER));
        let log = self.cluster.log(id);
        assert!(log.contains(words) && log.contains("Never start this node under its old id"), "{log}");
    }
}

async fn wiped_beside_a_living_leader(settings: &str, must_be_purged: bool) {
    for _ in 0..rounds() {
        let mut round = Round::begin(settings).await;
        round.write(WRITES).await;
        let (leader, wiped, other) = round.others().await;
        if must_be_purged {
            while round.cluster.status(leader).await.unwrap()["raft"]["purged_index"] == 0 {
                round.write(20).await;
            }
        }
        round.cluster.kill(wiped);
        round.cluster.wipe(wiped);
        round.write(5).await;
        round.cluster.start_node(wiped);
        round.expect_refusal(wiped, REFUSED).await;
        round.write(5).await;
        round.verify(&[leader, other]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_by_a_living_leader_with_its_whole_log() {
    wiped_beside_a_living_leader(FAST, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_by_a_living_leader_with_a_purged_log() {
    wiped_beside_a_living_leader(&often(), true).await;
}

/// Acknowledged by the leader and one node while the third is away; then the leader is down and the one is
/// wiped.
async fn wiped_beside_a_dead_leader(settings: &str) {
    for _ in 0..rounds() {
        let mut round = Round::begin(settings).await;
        round.write(5).await;
        let (leader, wiped, away) = round.others().await;
        round.cluster.kill(away);
        round.write(WRITES).await;
        round.cluster.kill(leader);
        round.cluster.kill(wiped);
        round.cluster.wipe(wiped);
        round.cluster.start_node(wiped);
        round.cluster.start_node(away);
        round.expect_refusal(wiped, REFUSED).await;
        assert_ne!(round.cluster.status(away).await.unwrap()["serving"], true);
        round.cluster.start_node(leader);
        round.verify(&[leader, away]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_though_the_leader_that_has_its_word_is_dead() {
    wiped_beside_a_dead_leader(FAST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused_though_the_leader_is_dead_and_logs_are_purged() {
    wiped_beside_a_dead_leader(&often()).await;
}

/// As if the third node had never met the other in all its life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_that_nobody_there_knows_waits_for_the_one_that_may_know_it() {
    for _ in 0..rounds() {
        let mut round = Round::begin(FAST).await;
        let (leader, wiped, away) = round.others().await;
        round.cluster.kill(away);
        std::fs::remove_file(round.cluster.data(away).join("acquaintances")).unwrap();
        round.write(WRITES).await;
        round.cluster.kill(leader);
        round.cluster.kill(wiped);
        round.cluster.wipe(wiped);
        round.cluster.start_node(wiped);
        round.cluster.start_node(away);
        let cluster = &round.cluster;
        let nodes = format!("nodes=\"{leader}\"");
        let says = || async {
            cluster.log(wiped).lines().any(|line| line.contains(WAITS) && line.contains(&nodes)).then_some(())
        };
        eventually("it says for whom it waits", SERVING, says).await;
        let unready = || async {
            let text = cluster.unready(wiped).await?;
            text.contains(&format!("waits for node {leader}")).then_some(())
        };
        eventually("readyz says it, too", SERVING, unready).await;
        assert_ne!(cluster.status(away).await.unwrap()["serving"], true);
        round.cluster.start_node(leader);
        round.expect_refusal(wiped, REFUSED).await;
        round.verify(&[leader, away]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_wiped_nodes_of_three_are_refused_by_the_one_that_has_the_data() {
    for _ in 0..rounds() {
        let mut round = Round::begin(FAST).await;
        round.write(WRITES).await;
        round.cluster.wait_for_equal_digests().await;
        let (leader, one, other) = round.others().await;
        let before = round.cluster.status(leader).await.unwrap()["state"]["znodes"].as_u64().unwrap();
        for id in [one, other] {
            round.cluster.kill(id);
            round.cluster.wipe(id);
        }
        for id in [one, other] {
            round.cluster.start_node(id);
        }
        for id in [one, other] {
            round.expect_refusal(id, REFUSED).await;
        }
        let state = round.cluster.status(leader).await.unwrap()["state"].clone();
        assert!(state["znodes"].as_u64().unwrap() >= before, "nothing is lost where the data is: {state}");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let to = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &to);
        } else {
            std::fs::copy(file.path(), to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_an_older_copy_of_its_data_is_refused_by_the_leader_that_has_its_word() {
    for _ in 0..rounds() {
        let mut round = Round::begin(FAST).await;
        round.write(10).await;
        let (leader, restored, other) = round.others().await;
        round.cluster.kill(restored);
        let aside = round.cluster.folder.join("aside");
        copy(&round.cluster.data(restored), &aside);
        round.cluster.start_node(restored);
        round.cluster.wait_until_serves(restored).await;
        round.write(WRITES).await;
        round.cluster.wait_for_equal_digests().await;
        round.cluster.kill(restored);
        round.cluster.wipe(restored);
        copy(&aside, &round.cluster.data(restored));
        round.cluster.start_node(restored);
        round.expect_refusal(restored, "is older than what the node has acknowledged").await;
        round.verify(&[leader, other]).await;
    }
}
