//! minimum-hold: a lock that is kept after its holder, and `rowlock once`, which runs a command once per
//! interval on one of many hosts. The drill is short here; `ROWLOCK_DRILL=8` makes it eight times longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowlock_proto::opcode::OpCode;
use rowlock_world::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::cli_under_lock::start;
use crate::drills::{factor, history};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, rowlock};
use crate::support::http::post;
use crate::support::tools::preloaded;
use crate::support::{eventually, secs};

const BUSY: i32 = 1;
const HOSTS: usize = 20;
const INTERVAL_MS: i64 = 5_000;
/// From one run to the next: what is left of the interval, the death of the holder's session, an election.
/// More would leave an interval without a run.
const GAP_MAX_MS: i64 = 3 * INTERVAL_MS;
/// Of a hundred attempts, those whose host dies soon.
const DEATHS: usize = 70;

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    start(&cluster.folder, arguments).end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minimum_hold_keeps_others_out_after_a_release_and_after_a_death() {
    let cluster = Cluster::start_with_api(1, FAST).await;
    let begun = Instant::now();
    assert_eq!(ask(&cluster, &["lock", "--min-hold", "2.5", "l", "true"]).await.code, 0);
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, BUSY);
    assert_eq!(ask(&cluster, &["lock", "l", "true"]).await.code, 0);
    assert!(begun.elapsed() >= Duration::from_millis(2_500), "{:?}", begun.elapsed());
    let flags = ["lock", "--min-hold", "60", "l", "-c", "echo > started; sleep 600"];
    let mut holder = start(&cluster.folder, &flags);
    holder.wrote("started").await;
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert_eq!(ask(&cluster, &["lock", "-w", "5", "l", "true"]).await.code, BUSY, "its warden gave it back");
    assert_eq!(ask(&cluster, &["release", "--force", "--token", "0", "l"]).await.code, 0);
    assert_eq!(ask(&cluster, &["lock", "-n", "l", "true"]).await.code, 0);
    // By HTTP.
    let api = cluster.api(1);
    let lock = async |document: Value| post(api, "/v1/locks/h/acquire", &document).await.unwrap();
    let (code, _) = lock(json!({ "ttl_ms": 10_000, "min_hold_ms": 2_678_400_001_u32 })).await;
    assert_eq!(code, 400, "longer than 31 days");
    let (_, held) = lock(json!({ "ttl_ms": 10_000, "min_hold_ms": 60_000 })).await;
    let claim = json!({ "secret": held["secret"], "token": held["token"] });
    assert_eq!(post(api, "/v1/locks/h/release", &claim).await.unwrap().1, json!({ "released": true }));
    let (_, busy) = lock(json!({ "ttl_ms": 10_000 })).await;
    assert_eq!((&busy["state"], &busy["holder"]), (&json!("busy"), &Value::Null));
}

/// Passes a client on to the node at `target`; answers are late by this much once, behind the first acquire.
async fn with_a_late_grant(target: String, late: Duration) -> String {
    let acquire = OpCode::Acquire.as_i32().to_be_bytes();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let until = Arc::new(Mutex::new(None::<Instant>));
        while let Ok((near, _)) = listener.accept().await {
            let (mut near_in, mut near_out) = near.into_split();
            let (mut far_in, mut far_out) = TcpStream::connect(&target).await.unwrap().into_split();
            let (asked, answered) = (until.clone(), until.clone());
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = near_in.read(&mut bytes).await {
                    if bytes[..count].windows(acquire.len()).any(|bytes| bytes == acquire) {
                        asked.lock().unwrap().get_or_insert_with(|| Instant::now() + late);
                    }
                    far_out.write_all(&bytes[..count]).await.unwrap();
                }
            });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = far_in.read(&mut bytes).await {
                    let held_back = *answered.lock().unwrap();
                    if let Some(until) = held_back {
                        tokio::time::sleep_until(until.into()).await;
                    }
                    if near_out.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Two starts were within `--every`: the interval counted from the grant alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_starts_are_within_the_interval_though_the_answer_of_a_grant_is_late() {
    const EVERY_MS: i64 = 6_000;
    let cluster = Cluster::start(1, FAST).await;
    let late = with_a_late_grant(cluster.endpoints(), secs(4)).await;
    let runs = cluster.folder.join("runs");
    let job = format!("date +%s%3N >> {}", runs.display());
    let flags = ["once", "--every", "6s", "-w", "20", "--session-timeout", "20", "j", "-c", &job];
    let first = start(&cluster.folder, &[&["once", "--endpoints", &late], &flags[1..]].concat()).end().await;
    assert_eq!(first.code, 0, "{}", first.err);
    let second = ask(&cluster, &flags).await;
    assert_eq!(second.code, 0, "{}", second.err);
    let runs = fs::read_to_string(runs).unwrap();
    let at: Vec<i64> = runs.lines().map(|line| line.parse().unwrap()).collect();
    // The shell reads the time later than the command starts, on a busy machine much later.
    assert!(at.len() == 2 && at[1] - at[0] >= EVERY_MS - 1_000, "{at:?}");
}

#[derive(Clone)]
struct Host {
    folder: PathBuf,
    /// Sets its wall clock.
    library: PathBuf,
    number: usize,
    end: Instant,
}

impl Host {
    /// How far its wall clock is ahead: all of them are within an hour.
    fn skew_s(&self) -> i64 {
        (self.number * 3_600 / (HOSTS - 1)) as i64 - 1_800
    }

    /// Tries once per interval, as a timer would. It often dies with its run. Gives how often that was.
    fn live(&self) -> usize {
        let (mut deaths, mut rng) = (0, Rng::new(self.number as u64));
        std::thread::sleep(Duration::from_millis(INTERVAL_MS as u64) * self.number as u32 / HOSTS as u32);
        while Instant::now() < self.end {
            let tried = Instant::now();
            let run = "echo $ROWLOCK_LOCK_TOKEN $(date +%s) >> runs; sleep 2.$((RANDOM % 9)); \
                       echo $ROWLOCK_LOCK_TOKEN >> ends";
            let words =
                ["once", "--every", "5s", "--disconnect-grace", "1", "drill", "--", "bash", "-c", run];
            let mut command = rowlock(&self.folder, &words);
            command.env("LD_PRELOAD", &self.library).env("CLOCK_SKEW_S", self.skew_s().to_string());
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let dies =
                rng.chance(DEATHS).then(|| tried + Duration::from_millis(100 + rng.below(2_000) as u64));
            while child.try_wait().unwrap().is_none() {
                if dies.is_some_and(|dies| Instant::now() >= dies) {
                    // In every other death the warden, which would give the lock back, goes first.
                    if rng.chance(50) {
                        kill_warden(child.id());
                    }
                    child.kill().unwrap();
                    child.wait().unwrap();
                    deaths += 1;
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let next = tried + Duration::from_millis(INTERVAL_MS as u64);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        deaths
    }
}

fn kill_warden(parent: u32) {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let words = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if words.contains("__warden") {
                let pid = Pid::from_raw(child.parse().unwrap()).unwrap();
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The lines of a file: a token, and what else is in its line.
fn tokens(file: &Path) -> Vec<(i64, Option<i64>)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next())
    };
    text.lines().map(line).collect()
}

/// The times of the grants that a node has recorded, by the cluster's clock, with their tokens.
async fn grants(cluster: &Cluster) -> Vec<(i64, i64)> {
    let complete = || async {
        for id in cluster.ids() {
            if let Some(entries) = history(cluster, id, "drill").await {
                let granted = entries.iter().filter(|entry| entry["event"] == "granted");
                let token = |entry: &Value| entry["token"].as_str().unwrap().parse().unwrap();
                return Some(
                    granted.map(|entry| (entry["time_ms"].as_i64().unwrap(), token(entry))).collect(),
                );
            }
        }
        None
    };
    eventually("a history without a gap", secs(60), complete).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_hosts_run_once_per_interval_and_skip_none_while_hosts_and_leaders_die() {
    if !Path::new("/bin/bash").exists() {
        println!("bash is not installed: the drill of hosts is LEFT OUT");
        return;
    }
    let mut cluster = Cluster::start(3, FAST).await;
    let length = secs(25) * factor() as u32;
    let (begun, end) = (Instant::now(), Instant::now() + length);
    let mut hosts = JoinSet::new();
    let library = preloaded(&cluster.folder, "skewed_clock.c");
    for number in 0..HOSTS {
        let host = Host { folder: cluster.folder.clone(), library: library.clone(), number, end };
        hosts.spawn_blocking(move || host.live());
    }
    for kill in 1..=2 {
        tokio::time::sleep_until((begun + length * kill / 3).into()).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.start_node(leader);
        cluster.wait_until_serves(leader).await;
    }
    let mut deaths = 0;
    while let Some(died) = hosts.join_next().await {
        deaths += died.unwrap();
    }
    let (grants, runs) = (grants(&cluster).await, tokens(&cluster.folder.join("runs")));
    let granted: BTreeMap<i64, i64> = grants.iter().map(|(time_ms, token)| (*token, *time_ms)).collect();
    assert!(runs.iter().all(|(token, _)| granted.contains_key(token)), "{runs:?} {grants:?}");
    let distinct: BTreeSet<i64> = runs.iter().map(|(token, _)| *token).collect();
    assert_eq!(distinct.len(), runs.len(), "one grant is one run: {runs:?}");
    // A host may die between its grant and the start of its command.
    assert!(runs.len() + deaths >= grants.len(), "{} runs, {} grants", runs.len(), grants.len());
    let gaps: Vec<i64> = grants.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(gaps.iter().all(|gap| *gap >= INTERVAL_MS), "twice in an interval: {gaps:?}");
    assert!(gaps.iter().all(|gap| *gap < GAP_MAX_MS), "none in an interval: {gaps:?}");
    let least = length.as_millis() as i64 / GAP_MAX_MS;
    assert!(grants.len() as i64 >= least, "{} grants in {length:?}", grants.len());
    let killed = grants.len() - tokens(&cluster.folder.join("ends")).len();
    assert!(killed >= grants.len() / 3, "{killed} of {} holders were killed", grants.len());
    let ahead: Vec<i64> =
        runs.iter().filter_map(|(token, wall_s)| Some((*wall_s)? - granted[token] / 1_000)).collect();
    let (least, most) = (ahead.iter().min().unwrap(), ahead.iter().max().unwrap());
    assert!(most - least >= 300, "the wall clocks of the runs are {ahead:?} s ahead");
    println!(
        "{HOSTS} hosts, {length:?}: {} grants, {killed} holders killed, {deaths} hosts died, wall clocks from \
         {least} to {most} s ahead, gaps {gaps:?}",
        grants.len()
    );
}
