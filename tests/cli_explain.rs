//! `rowlock release` in a long queue, `rowlock history --follow` while nodes die, and `rowlock contention`.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use rowlock_client::Client;
use rowlock_proto::lock::NoticeEvent;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time;

use crate::cli_under_lock::{Running, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::Said;
use crate::support::{eventually, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS, exclusive, held, waiting};

const REFUSED: i32 = 1;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    start(&cluster.folder, arguments).end().await
}

async fn told(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = ask(cluster, arguments).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    said.out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_finds_the_place_that_is_meant_in_a_queue_of_any_length() {
    const WAITERS: usize = 1_200;
    let cluster = Cluster::start(1, FAST).await;
    let mut raw = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    let first = held(raw.acquire(exclusive("/locks/l", "_c_first-lock-")).await);
    let mut last = first;
    for n in 0..WAITERS {
        last = waiting(raw.acquire(exclusive("/locks/l", &format!("_c_{n}-lock-"))).await).0;
    }
    let token = last.token.to_string();
    told(&cluster, &["release", "l", "--force", "--token", &token]).await;
    let notice = raw.notice().await.1;
    assert_eq!((notice.claim, notice.event), (last, NoticeEvent::Deleted));
    let said = ask(&cluster, &["release", "l", "--force", "--token", &token]).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains(&format!("no holder or waiter has token {token}; \"")), "{}", said.err);
}

/// The entries that a follower of the history prints, one after the other.
struct Followed {
    running: Running,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Followed {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Followed {
        let mut running = start(&cluster.folder, arguments);
        let lines = BufReader::new(running.child.stdout.take().unwrap()).lines();
        Followed { running, lines }
    }

    /// Event, label and change of the next ones.
    fn next(&mut self, count: usize) -> Vec<(String, String, u64)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lines = (&mut self.lines).take(count).map(|line| {
            let entry: Value = serde_json::from_str(&line.unwrap()).unwrap();
            (text(&entry["event"]), text(&entry["label"]), entry["zxid"].as_u64().unwrap())
        });
        lines.collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_the_history_sees_each_entry_once_though_its_node_dies() {
    let mut cluster = Cluster::start(3, FAST).await;
    let (first, others) = (cluster.ids()[0], cluster.ids()[1..].to_vec());
    told(&cluster, &["lock", "--label", "before", "l", "true"]).await;
    told(&cluster, &["lock", "--label", "else", "other", "true"]).await;
    let arguments = ["history", "l", "--follow", "-o", "json", "--limit", "2"];
    let mut of_all = Followed::start(&cluster, &["history", "-f", "-o", "json", "--limit", "1"]);
    let mut of_one = Followed::start(&cluster, &arguments);
    let (begun, rest) = (of_one.next(2), of_all.next(1));
    assert_eq!(begun.iter().map(|entry| &*entry.0).collect::<Vec<_>>(), ["granted", "released"]);
    assert_eq!((&*rest[0].0, &*rest[0].1), ("released", "else"));

    // Each node dies once, so that the followers' do, too.
    let mut zxids = vec![begun[1].2];
    for (round, node) in std::iter::once(first).chain(others).enumerate() {
        cluster.kill(node);
        let label = format!("round-{round}");
        told(&cluster, &["lock", "--label", &label, "l", "true"]).await;
        for followed in [&mut of_one, &mut of_all] {
            let seen = followed.next(3);
            let (events, labels): (Vec<_>, Vec<_>) =
                seen.iter().map(|(event, label, _)| (event.as_str(), label.as_str())).unzip();
            assert_eq!((events, labels), (vec!["requested", "granted", "released"], vec![&*label; 3]));
            zxids.push(seen[0].2);
        }
        cluster.start_node(node);
        cluster.wait_until_serves(node).await;
    }
    assert!(zxids.is_sorted(), "{zxids:?}");
    of_one.running.end_with_signal().await;
    of_all.running.end_with_signal().await;
    // No node can be asked.
    let nowhere = ["history", "-f", "--endpoints", "127.0.0.1:1", "--connect-timeout", "0.2"];
    assert_eq!(ask(&cluster, &nowhere).await.code, 69);
}

/// Takes one of three locks `times` times, each time for 60 to 100 ms, and returns the own measurement of the
/// waiting for each.
async fn work(client: Client, worker: u64, times: u64) -> [Duration; 3] {
    let mut waited = [Duration::ZERO; 3];
    for turn in 0..times {
        let at = (worker + turn) as usize % 3;
        let begun = Instant::now();
        let request = client.mutex(format!("job-{at}")).request().label(format!("worker {worker}"));
        let guard = request.lock().await.unwrap();
        waited[at] += begun.elapsed();
        time::sleep(Duration::from_millis(60 + 10 * (worker + turn) % 50)).await;
        guard.release().await.unwrap();
    }
    waited
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_is_what_the_clients_have_measured_and_names_who_held_the_lock() {
    const WORKERS: u64 = 9;
    const TIMES: u64 = 6;
    let cluster = Cluster::start(3, FAST).await;
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        workers.spawn(work(cluster.client().await, worker, TIMES));
    }
    let measured = workers.join_all().await.into_iter().fold([Duration::ZERO; 3], |mut sum, waited| {
        sum.iter_mut().zip(waited).for_each(|(sum, waited)| *sum += waited);
        sum
    });
    // This one waits still.
    let holder = cluster.client().await.mutex("held").request().label("the holder").lock().await.unwrap();
    let waiter = start(&cluster.folder, &["lock", "--label", "the waiter", "held", "true"]);
    let queued = async || told(&cluster, &["queue", "held"]).await.contains("the waiter").then_some(());
    eventually("the queue", secs(60), queued).await;
    time::sleep(Duration::from_millis(300)).await;

    let document: Value = serde_json::from_str(&told(&cluster, &["contention", "-o", "json"]).await).unwrap();
    let of = |name: &str| {
        let path = format!("/locks/{name}");
        let locks = document["locks"].as_array().unwrap();
        locks
            .iter()
            .find(|lock| lock["lock"] == path.as_str())
            .unwrap_or_else(|| panic!("{name}: {document}"))
    };
    for (at, measured) in measured.into_iter().enumerate() {
        let lock = of(&format!("job-{at}"));
        let (requests, shown) = (lock["requests"].as_u64().unwrap(), lock["waited_ms"].as_f64().unwrap());
        assert_eq!(requests, WORKERS * TIMES / 3);
        // The clients also measure their requests' way to the cluster and back.
        let measured = measured.as_secs_f64() * 1_000.0;
        println!(
            "job-{at}: {shown} ms, measured {measured:.0} ms: {:.2} % less",
            100.0 - 100.0 * shown / measured
        );
        assert!(shown <= measured && shown > measured / 2.0, "{shown} of {measured}");
        let one = told(&cluster, &["contention", &format!("job-{at}"), "-o", "json"]).await;
        let one: Value = serde_json::from_str(&one).unwrap();
        let pairs = one["locks"][0]["pairs"].as_array().unwrap();
        let pairs: f64 = pairs.iter().map(|pair| pair["waited_ms"].as_f64().unwrap()).sum();
        assert!((pairs - shown).abs() < 100.0, "{one}");
    }
    let held = of("held");
    let waiter_shown = &held["waiting"][0]["waiter"];
    assert_eq!((&held["waits"], waiter_shown), (&Value::from(1), &Value::from("the waiter")));
    assert_eq!(held["behind"][0]["holder"], "the holder");
    assert!(held["waited_ms"].as_f64().unwrap() >= 300.0, "{held}");

    let table = told(&cluster, &["contention"]).await;
    assert!(table.contains("waited, for 4 locks."), "{table}");
    let one = told(&cluster, &["contention", "held", "-o", "simple"]).await;
    assert!(one.starts_with("the waiter\tthe holder\t"), "{one}");
    println!("{table}{one}");
    let now = told(&cluster, &["contention", "--since", "2100-01-01T00:00:00Z"]).await;
    assert!(now.contains("clients waited 0.00 s in all: 1 of 1 request waited"), "{now}");
    holder.release().await.unwrap();
    waiter.end().await;
}
