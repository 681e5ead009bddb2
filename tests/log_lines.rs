//! What a node logs for the person who reads it at night: where it starts, what was done to it, and in an
//! outage no line over and over.

use std::time::Duration;

use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, http};

const OUTAGE: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_line_names_the_node_and_an_outage_of_the_quorum_repeats_nothing_at_info() {
    let mut cluster = Cluster::start(3, FAST).await;
    let log = cluster.log(1);
    let first = log.lines().next().unwrap();
    for part in ["node starts", "version=", "commit=", "node=1", "client=", "members="] {
        assert!(first.contains(part), "{part} in {first}");
    }
    assert!(log.contains("membership voters=\"1,2,3\""), "{log}");
    let client = cluster.client_of(cluster.endpoint(1)).await;
    cluster.kill(2);
    cluster.kill(3);
    // A client that writes keeps the node trying to reach a leader.
    let writes = tokio::time::timeout(OUTAGE, async {
        loop {
            let _ = client.set("/", Some("x".into()), None).await;
        }
    });
    assert!(writes.await.is_err(), "it goes on for as long as the outage lasts");
    let log = cluster.log(1);
    let outage = &log[log.find("stopped serving clients").unwrap()..];
    let lines = outage.lines().filter(|line| line.contains(" INFO ")).count();
    assert!(lines <= 12, "{lines} lines in {OUTAGE:?}:\n{outage}");
    for form in ["Some(", "NodeId(", "None,", "role=Candidate"] {
        assert!(!log.contains(form), "{form} in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_an_operator_takes_away_is_in_the_log_without_an_audit_log_too() {
    let cluster = Cluster::start_with_api(1, FAST).await;
    let client = cluster.client().await;
    let held = client.mutex("job").lock().await.unwrap();
    let path = format!("/v1/locks/job/holders/{}", held.token().0);
    let (status, document) = http::request(cluster.api(1), &format!("DELETE {path}"), "", "").await.unwrap();
    assert_eq!(status, 200, "{document}");
    let logged = || async {
        let log = cluster.log(1);
        let by_whom =
            log.lines().any(|line| line.contains("operator request") && line.contains("forceRelease"));
        let lost = log.lines().any(|line| line.contains("lock lost") && line.contains("reason=\"forced\""));
        (by_whom && lost).then_some(())
    };
    eventually("both lines", Duration::from_secs(10), logged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_node_of_a_new_cluster_says_which_nodes_to_start() {
    let mut cluster = Cluster::start(3, FAST).await;
    cluster.kill_all();
    cluster.forget_everything();
    let before = cluster.log(1).len();
    cluster.start_node(1);
    let says = || async { cluster.log(1)[before..].contains("start these nodes").then_some(()) };
    eventually("the advice", Duration::from_secs(20), says).await;
    assert!(!cluster.log(1)[before..].contains("gone for good"), "nothing is known to be lost");
}
