//! Acknowledgement of locks before the flush (`[locks] acknowledge`), on real processes.
//! `lab/bench/blackouts.py` cuts their power.

use rowlock_client::Client;
use serde_json::Value;

use crate::support::cluster::{Cluster, FAST};
use crate::support::secs;

const WRITTEN: &str = "[locks]\nacknowledge = \"written\"\nflush_within_ms = 2000\n";
const FLUSHED: &str = "[locks]\nacknowledge = \"flushed\"\n";

/// Cycles of a lock in each state of the change.
const CYCLES: usize = 20;

async fn says(cluster: &Cluster, id: u64, mode: &str) {
    let status = cluster.status(id).await.expect("the node answers");
    assert_eq!((&status["locks"]["acknowledge"], &status["forgotten"]), (&Value::from(mode), &false.into()));
}

/// mutual-exclusion, exactly-once: a holder keeps its lock, and the tokens of another lock grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_cluster_changes_the_mode_and_back() {
    let mut cluster = Cluster::start(3, FAST).await;
    let config = Client::builder().endpoints(&cluster.endpoints()).session_timeout(secs(20));
    let client = config.connect_timeout(secs(30)).connect().await.unwrap();
    let held = client.mutex("held").lock().await.unwrap();
    let mut token = held.token();
    for (settings, mode) in [(WRITTEN, "written"), (FLUSHED, "flushed")] {
        cluster.change_settings(&format!("{FAST}{settings}"));
        for id in cluster.ids() {
            cluster.restart(id).await;
            says(&cluster, id, mode).await;
            for _ in 0..CYCLES {
                let guard = client.mutex("cycled").lock().await.unwrap();
                assert!(guard.token() > token, "tokens grow");
                token = guard.token();
                guard.release().await.unwrap();
            }
            assert!(held.is_held(), "no restart loses a lock");
        }
    }
    held.release().await.unwrap();
}

/// durable: the kernel has what killed processes have written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_forget_nothing_that_only_the_kernel_has() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{WRITTEN}")).await;
    let config = Client::builder().endpoints(&cluster.endpoints()).session_timeout(secs(20));
    let client = config.connect_timeout(secs(30)).connect().await.unwrap();
    client.mutex("kept").lock().await.unwrap().release().await.unwrap();
    let guard = client.mutex("kept").lock().await.unwrap();
    cluster.kill_all();
    for id in cluster.ids() {
        cluster.start_node(id);
    }
    cluster.wait_until_serving().await;
    for id in cluster.ids() {
        says(&cluster, id, "written").await;
    }
    assert!(guard.check().await.unwrap(), "the grant was not flushed, and is there");
    guard.release().await.unwrap();
}
