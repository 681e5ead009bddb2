//! Elections on slow disks: every flush of every node takes longer than a leader may have been silent in
//! other set-ups. How long they take is measured by `lab/bench/elections.py`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::cluster::Cluster;
use crate::support::tools::preloaded;
use crate::support::{command, eventually, secs};

/// Milliseconds that each flush takes.
const FLUSH_MS: &str = "150";
/// Terms that an election may take.
const TERMS: u64 = 5;
/// A debug build on a busy machine. Without growing rounds there is no leader for as long as disks are slow.
const ELECTED: Duration = secs(60);

/// Starts three nodes and returns the folder that makes their flushes slow: the file `all` or one named as a
/// process has the milliseconds.
async fn with_slow_flushes() -> (Cluster, PathBuf) {
    let mut it = Cluster::start(3, "").await;
    let library = preloaded(&it.folder, "slow_flush.c");
    let slow = it.folder.join("slow");
    fs::create_dir(&slow).unwrap();
    it.environment =
        vec![("LD_PRELOAD".into(), library.into()), ("SLOW_FLUSHES".into(), slow.clone().into())];
    for id in it.ids() {
        it.restart(id).await;
    }
    (it, slow)
}

async fn term(it: &Cluster, id: u64) -> u64 {
    let found = || async { it.status(id).await?["raft"]["term"].as_u64() };
    eventually("a term", ELECTED, found).await
}

/// Waits for a leader other than `old`. Returns its id and by how many terms it is later than `before`.
async fn next_leader(it: &Cluster, old: u64, before: u64) -> (u64, u64) {
    let found = || async {
        for id in it.ids().into_iter().filter(|id| *id != old) {
            let Some(status) = it.status(id).await else { continue };
            // A status is up to 50 ms old, and may be that of the leader before.
            let terms = status["raft"]["term"].as_u64().unwrap().saturating_sub(before);
            if terms > 0 && status["serving"] == true && status["raft"]["role"] == "leader" {
                return Some((id, terms));
            }
        }
        None
    };
    eventually("another leader", ELECTED, found).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_slow_flushes_on_all_nodes_a_killed_or_stopped_leader_is_replaced_within_few_terms() {
    let (mut it, slow) = with_slow_flushes().await;
    fs::write(slow.join("all"), FLUSH_MS).unwrap();

    let killed = it.leader().await;
    let before = term(&it, killed).await;
    it.kill(killed);
    let (stopped, terms) = next_leader(&it, killed, before).await;
    assert!(terms <= TERMS, "{terms} terms after a kill");
    it.start_node(killed);
    it.wait_until_serves(killed).await;

    let before = term(&it, stopped).await;
    it.signal(stopped, Signal::STOP);
    let (leader, terms) = next_leader(&it, stopped, before).await;
    assert!(terms <= TERMS, "{terms} terms after a stop");
    it.signal(stopped, Signal::CONT);
    it.wait_until_serves(stopped).await;

    let before = term(&it, leader).await;
    it.signal(leader, Signal::TERM);
    let (_, terms) = next_leader(&it, leader, before).await;
    assert!(terms <= TERMS, "{terms} terms after a hand-over");
    assert_eq!(it.exit_code(leader).await, Some(0));
}

/// Heartbeats are answered without the disk, so a leader with a quorum whose disks hang goes on, and a
/// hand-over could only end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_disks_of_a_majority_hang_the_leader_hands_over_to_no_other_and_sessions_stay() {
    let (it, slow) = with_slow_flushes().await;
    let leader = it.leader().await;
    let healthy = it.follower().await;
    let term_before = term(&it, leader).await;
    let client = it.client().await;
    let guard = client.mutex("held").lock().await.unwrap();
    for id in it.ids().into_iter().filter(|id| *id != healthy) {
        fs::write(slow.join(it.pid(id).to_string()), "12000").unwrap();
    }
    // Longer than a log must hang for its leader to look for a successor, and than its session lasts.
    let lost = tokio::time::timeout(secs(20), guard.lost()).await;
    assert!(lost.is_err(), "the lock was lost: {lost:?}");
    let config = it.config();
    let doctor = command::run(&it.folder, &["status", "--config", config.to_str().unwrap()]);
    assert_eq!((it.leader().await, term(&it, leader).await), (leader, term_before), "{}", doctor.out);
    fs::remove_dir_all(&slow).unwrap();
    guard.release().await.unwrap();
}
