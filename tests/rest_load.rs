//! Many clients by HTTP at once: requests that wait, and leases that only live. `ROWLOCK_REST_WAITS` and
//! `ROWLOCK_REST_LEASES` say how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::cluster::{Cluster, FAST};
use crate::support::http::post;
use crate::support::{eventually, secs};

/// Requests that wait at one node: its bound (`API_WAITS_MAX`).
const WAITS_MAX: u64 = 5_000;
/// Connections that are opened at once.
const AT_ONCE: u64 = 64;
const LOCK: &str = "/v1/locks/crowd";

/// Leases that outlive the making of all others.
fn settings() -> String {
    FAST.replace("[session]\n", "[session]\nmax_timeout_ms = 120000\n")
}

fn count(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// Bytes of the process that are in memory now.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Milliseconds of processor that the process has used.
fn processor_ms(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind = text.rsplit_once(')').unwrap().1;
    let ticks: Vec<u64> = behind.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
    ticks.iter().sum::<u64>() * 10
}

/// An answer that is no refusal for the moment.
async fn ask(api: &str, path: &str, document: &Value) -> (u16, Value) {
    eventually("an answer", secs(120), async || {
        post(api, path, document).await.filter(|(code, _)| *code != 503)
    })
    .await
}

/// Opens this number of leases through these nodes, as `post` gives them.
async fn leases(apis: &[String], count: u64) -> Vec<Value> {
    let mut tasks = JoinSet::new();
    let mut made = Vec::new();
    for n in 0..count {
        let api = apis[(n % apis.len() as u64) as usize].clone();
        tasks.spawn(async move { ask(&api, "/v1/leases", &json!({ "ttl_ms": 120_000 })).await });
        if n >= AT_ONCE {
            made.push(tasks.join_next().await.unwrap().unwrap());
        }
    }
    made.extend(tasks.join_all().await);
    made.into_iter().map(|(code, lease)| if code == 201 { lease } else { panic!("{code} {lease}") }).collect()
}

/// Waits in the queue until it holds the lock, and gives it back at once. Milliseconds until then.
async fn wait_and_release(api: String, lease: Value, n: u64) -> (i64, u128) {
    let begun = Instant::now();
    let acquire = json!({ "secret": lease["secret"], "request_id": n.to_string(), "wait_ms": 60_000 });
    loop {
        let (code, answer) = ask(&api, &format!("{LOCK}/acquire"), &acquire).await;
        match answer["state"].as_str() {
            Some("waiting") => {}
            Some("held") => {
                let took = begun.elapsed().as_millis();
                let release = json!({ "secret": lease["secret"], "token": answer["token"] });
                let (_, released) = ask(&api, &format!("{LOCK}/release"), &release).await;
                assert_eq!(released, json!({ "released": true }));
                return (answer["token"].as_str().unwrap().parse().unwrap(), took);
            }
            _ => panic!("{code} {answer}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_requests_that_wait_are_answered_in_order_and_those_beyond_the_bound_are_refused() {
    let waits = count("ROWLOCK_REST_WAITS", 200).min(WAITS_MAX);
    let it = Cluster::start_with_api(3, &settings()).await;
    let id = it.follower().await;
    let (api, pid) = (it.api(id).to_owned(), it.pid(id));
    let all = leases(std::slice::from_ref(&api), waits + 2).await;
    let [holder, beyond, waiters @ ..] = &all[..] else { unreachable!() };
    let acquire = json!({ "secret": holder["secret"], "request_id": "holder" });
    let (_, held) = ask(&api, &format!("{LOCK}/acquire"), &acquire).await;
    let (before, processor, begun) = (resident(pid), processor_ms(pid), Instant::now());
    let mut tasks = JoinSet::new();
    for (n, lease) in waiters.iter().enumerate() {
        tasks.spawn(wait_and_release(api.clone(), lease.clone(), n as u64));
    }
    let waiting = async || it.metric(id, "rowlock_api_waits").await;
    eventually("all of them wait", secs(120), async || (waiting().await == waits).then_some(())).await;
    let (after, waited) = (resident(pid), begun.elapsed());
    let late = json!({ "secret": beyond["secret"], "request_id": "late", "wait_ms": 1 });
    let (code, refused) = post(&api, &format!("{LOCK}/acquire"), &late).await.unwrap();
    assert_eq!(code, if waits == WAITS_MAX { 503 } else { 202 }, "{refused}");
    let begun = Instant::now();
    let release = json!({ "secret": holder["secret"], "token": held["token"] });
    assert_eq!(ask(&api, &format!("{LOCK}/release"), &release).await.1, json!({ "released": true }));
    if code == 202 {
        // It stands behind all others, and gives its place up.
        let leave = json!({ "secret": beyond["secret"], "request_id": "late" });
        assert_eq!(ask(&api, &format!("{LOCK}/release"), &leave).await.1, json!({ "released": true }));
    }
    let mut grants = tasks.join_all().await;
    assert_eq!(grants.len() as u64, waits);
    grants.sort_unstable();
    let longest = grants.iter().map(|(_, took)| *took).max().unwrap();
    println!(
        "{waits} requests wait at one node after {waited:?}: {:.1} MB before, {:.1} MB then; all were granted within {:?} \
         of the first release, the longest wait was {longest} ms; {} ms of the node's processor",
        before as f64 / 1e6,
        after as f64 / 1e6,
        begun.elapsed(),
        processor_ms(pid) - processor,
    );
    assert_eq!(waiting().await, 0);
    assert_eq!(
        it.metric_of_all("rowlock_sessions_expired_total").await,
        0,
        "nobody was kept waiting too long"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_only_live_take_little_of_their_nodes() {
    let count = count("ROWLOCK_REST_LEASES", 300);
    let it = Cluster::start_with_api(3, &settings()).await;
    let apis: Vec<String> = it.ids().into_iter().map(|id| it.api(id).to_owned()).collect();
    // What the first requests take is not the leases'.
    leases(&apis, 30).await;
    let memory = || it.ids().into_iter().map(|id| resident(it.pid(id))).collect::<Vec<_>>();
    let (before, begun) = (memory(), Instant::now());
    let all = leases(&apis, count).await;
    let opened = begun.elapsed();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (id, (before, after)) in it.ids().into_iter().zip(before.iter().zip(memory())) {
        println!(
            "node {id}: {:.1} MB before {count} leases, {:.1} MB with them",
            *before as f64 / 1e6,
            after as f64 / 1e6
        );
    }
    println!("opened in {opened:?}");
    // Each at another node than the one that made it.
    for (n, lease) in all.iter().enumerate().step_by(1.max(all.len() / 100)) {
        let path = format!("/v1/leases/{}/keepalive", lease["lease"].as_str().unwrap());
        let (code, kept) =
            ask(&apis[(n + 1) % apis.len()], &path, &json!({ "secret": lease["secret"] })).await;
        assert_eq!((code, &kept["valid_for_ms"]), (200, &json!(120_000)), "{kept}");
    }
}

/// A stream of all lock events, read to its end by a task. Counts the bytes.
async fn follow(api: String, bytes: Arc<AtomicU64>) {
    let mut stream = TcpStream::connect(&api).await.unwrap();
    stream.write_all(format!("GET /v1/watch HTTP/1.1\r\nHost: {api}\r\n\r\n").as_bytes()).await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
    }
}

/// Takes and gives back a lock for this time: how often.
async fn cycles(api: &str, lease: &Value, round: usize, limit: Duration) -> u64 {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < limit {
        let acquire = json!({ "secret": lease["secret"], "request_id": format!("{round}-{count}") });
        let (_, held) = ask(api, &format!("{LOCK}/acquire"), &acquire).await;
        let release = json!({ "secret": lease["secret"], "token": held["token"] });
        assert_eq!(ask(api, &format!("{LOCK}/release"), &release).await.1, json!({ "released": true }));
        count += 1;
    }
    count
}

/// `ROWLOCK_REST_STREAMS=0,250,990` says how many streams there are in turn,
/// `ROWLOCK_REST_STREAM_SECONDS` for how long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_lock_events_leave_the_node_to_its_writers() {
    let turns = std::env::var("ROWLOCK_REST_STREAMS").unwrap_or("0,100".to_owned());
    let turns: Vec<usize> = turns.split(',').map(|count| count.parse().unwrap()).collect();
    let limit = secs(count("ROWLOCK_REST_STREAM_SECONDS", 2));
    let it = Cluster::start_with_api(1, &settings()).await;
    let (api, pid) = (it.api(1).to_owned(), it.pid(1));
    let lease = leases(std::slice::from_ref(&api), 1).await.remove(0);
    let mut rates = Vec::new();
    for (round, streams) in turns.iter().cycle().take(3 * turns.len()).enumerate() {
        let bytes = Arc::<AtomicU64>::default();
        let mut readers = JoinSet::new();
        for _ in 0..*streams {
            readers.spawn(follow(api.clone(), bytes.clone()));
        }
        let all_follow =
            async || (it.metric(1, "rowlock_api_watches").await == *streams as u64).then_some(());
        eventually("all streams have begun", secs(60), all_follow).await;
        let (before, begun) = (processor_ms(pid), Instant::now());
        let done = cycles(&api, &lease, round, limit).await;
        let (took, used) = (begun.elapsed().as_secs_f64(), processor_ms(pid) - before);
        println!(
            "{streams} streams: {:.1} cycles/s, {:.2} ms of processor per cycle, {} bytes to each",
            done as f64 / took,
            used as f64 / done as f64,
            bytes.load(Ordering::Relaxed) / (*streams as u64).max(1),
        );
        assert!(*streams == 0 || bytes.load(Ordering::Relaxed) > 0, "nothing was told");
        rates.push((*streams, done as f64 / took));
        readers.shutdown().await;
        eventually("they have ended", secs(60), async || {
            (it.metric(1, "rowlock_api_watches").await == 0).then_some(())
        })
        .await;
    }
    let best = |of: bool| rates.iter().filter(|(n, _)| (*n > 0) == of).map(|it| it.1).fold(0.0, f64::max);
    assert!(best(true) > best(false) / 3.0, "streams slow the writers down: {rates:?}");
}
