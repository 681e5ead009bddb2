//! What people are told who look for a cluster that does not answer.

use serde_json::Value;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, run};
use crate::support::{eventually, secs};

const UNAVAILABLE: i32 = 69;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    let (folder, arguments) =
        (cluster.folder.clone(), arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
    let job = move || run(&folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(job).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_says_of_each_endpoint_how_far_a_client_gets_and_why_no_further() {
    let mut cluster = Cluster::start(3, FAST).await;
    let fine = ask(&cluster, &["doctor"]).await;
    assert_eq!((fine.code, fine.out.ends_with("nothing is wrong\n")), (0, true), "{}", fine.out);
    let fine = ask(&cluster, &["doctor", "-o", "json"]).await;
    let fine: Value = serde_json::from_str(&fine.out).unwrap();
    assert!(fine.as_array().unwrap().iter().all(|endpoint| endpoint["round_trip_ms"].is_f64()), "{fine}");

    for (port, what) in [(cluster.http(1), "this port speaks HTTP"), (cluster.peer(1), "the peer port")] {
        let wrong = ask(&cluster, &["doctor", "--endpoints", port]).await;
        assert_eq!((wrong.code, wrong.out.contains(what)), (UNAVAILABLE, true), "{}", wrong.out);
    }

    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    cluster.kill(leader);
    cluster.kill(follower);
    let without_quorum = async || {
        let alone = ask(&cluster, &["doctor"]).await;
        assert_eq!(alone.code, UNAVAILABLE);
        alone.out.contains(": no contact to a quorum").then_some(alone)
    };
    let alone = eventually("the last node notices that it is alone", secs(30), without_quorum).await;
    assert_eq!(alone.out.matches("nothing listens there").count(), 2, "{}", alone.out);
    // Other commands say it as well.
    let ls = ask(&cluster, &["ls", "--connect-timeout", "2"]).await;
    assert_eq!(ls.code, UNAVAILABLE);
    assert!(ls.err.contains("no contact to a quorum"), "{}", ls.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_the_machine_measures_disk_and_network_and_leaves_nothing_behind() {
    let cluster = Cluster::start(
        1,
        "[raft]\nheartbeat_ms = 1000\nelection_timeout_min_ms = 3000\n\
        election_timeout_max_ms = 6000\n",
    )
    .await;
    let folder = cluster.folder.join("disk");
    std::fs::create_dir(&folder).unwrap();
    let check = ["check", "perf", "--for", "0.2", "--data", "disk"];
    let fits = ask(&cluster, &check).await;
    assert_eq!(fits.code, 0, "{}{}", fits.out, fits.err);
    assert!(fits.out.starts_with("disk     disk: a flush of 4 KiB takes "), "{}", fits.out);
    let network = format!("network  {}: a round trip takes ", cluster.endpoints());
    assert!(fits.out.contains(&network) && fits.out.contains(": they fit\n"), "{}", fits.out);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let absent = ask(&cluster, &["check", "perf", "--data", "absent"]).await;
    assert_eq!(absent.code, 73, "{}", absent.err);
}

#[test]
fn an_address_that_is_none_is_refused_with_how_to_write_it() {
    let folder = tempfile::tempdir().unwrap();
    for (endpoint, what) in [
        ("::1", "in brackets"),
        ("tcp://127.0.0.1:2181", "without a scheme"),
        ("127.0.0.1:99999", "from 1 to 65535"),
    ] {
        for command in ["ls", "doctor"] {
            let said = run(folder.path(), &[command, "--endpoints", endpoint]);
            assert_eq!((said.code, said.err.contains(what)), (64, true), "{command}: {}", said.err);
        }
    }
}
