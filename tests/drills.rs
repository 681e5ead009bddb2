//! mutual-exclusion, fencing-monotonic, fifo, exactly-once: drills with many kinds of clients at one lock.
//! They are short here; `ROWLOCK_DRILL=10` makes them ten times longer.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rowlock_client::{Acl, Client, CreateMode, Znode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cli_under_lock::Running;
use crate::mixed_queue::{Grant, LOCK, WITNESS, check, contender, curator, grants_of, kazoo, said};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{finish_within, rowlock};
use crate::support::http::post;
use crate::support::{eventually, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS};

const SHELLS: usize = 20;
/// Each shell takes the lock so often.
const CYCLES: usize = 5;
const KILLS: usize = 2;
/// Clients of each kind in the mixed queue, and how often each has its turn.
const EACH: usize = 2;
const TURNS: usize = 5;
const TIME_MAX: std::time::Duration = secs(600);

/// How many times longer than here the drills are to be.
pub fn factor() -> usize {
    std::env::var("ROWLOCK_DRILL").map_or(1, |text| text.parse().expect("ROWLOCK_DRILL is a number"))
}

fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success()) && Path::new("/bin/bash").exists();
    if !found {
        println!("bash or curl is not installed: the drill of shells is LEFT OUT");
    }
    found
}

fn shell(cluster: &Cluster, mode: &str, arguments: &[&str]) -> Command {
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("tests/drills/shell.sh");
    let nodes: Vec<&str> = cluster.ids().into_iter().map(|id| cluster.api(id)).collect();
    let mut command = Command::new("/bin/bash");
    command.arg(script).args([mode, &nodes.join(",")]).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// What one node has recorded of the lock, if it has no gap.
pub async fn history(cluster: &Cluster, id: u64, lock: &str) -> Option<Vec<Value>> {
    let flags = ["history", lock, "--limit", "1000000", "-o", "json", "--endpoints", cluster.endpoint(id)];
    let mut command = rowlock(&cluster.folder, &flags);
    let said =
        tokio::task::spawn_blocking(move || finish_within(command.spawn().unwrap(), secs(60))).await.unwrap();
    let document: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
    let entries = document["entries"].as_array().unwrap().clone();
    entries.iter().all(|entry| entry["event"] != "gap").then_some(entries)
}

/// Waits until a node has recorded this number of grants, and as many releases, of the lock.
async fn recorded(cluster: &Cluster, lock: &str, grants: usize) -> Vec<Value> {
    let complete = || async move {
        for id in cluster.ids() {
            let Some(entries) = history(cluster, id, lock).await else { continue };
            let count = |event| entries.iter().filter(|entry| entry["event"] == event).count();
            assert!(count("granted") <= grants, "{} grants instead of {grants}", count("granted"));
            if count("released") >= grants {
                return Some(entries);
            }
        }
        None
    };
    eventually("a history without a gap", secs(60), complete).await
}

/// Checks that each grant is that of the first in the queue while the lock is free. Returns the number of
/// grants.
fn each_release_wakes_the_next(entries: &[Value]) -> usize {
    let (mut queue, mut holder, mut grants) = (VecDeque::new(), None, 0);
    for entry in entries {
        let token = entry["token"].as_str().unwrap().parse::<i64>().unwrap();
        match entry["event"].as_str().unwrap() {
            "requested" => {
                assert!(queue.back().is_none_or(|last| *last < token), "{token} is not the last");
                queue.push_back(token);
            }
            "granted" => {
                assert_eq!((holder, queue.pop_front()), (None, Some(token)), "not the first in the queue");
                (holder, grants) = (Some(token), grants + 1);
            }
            "released" => {
                assert_eq!(holder.take(), Some(token), "released by another than the holder");
            }
            other => panic!("{other}: {entry}"),
        }
    }
    assert!(queue.is_empty() && holder.is_none(), "{queue:?} {holder:?}");
    grants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_shells_with_curl_count_right_while_leaders_are_killed_and_each_request_comes_three_times() {
    if !has_curl() {
        return;
    }
    let mut cluster = Cluster::start_with_api(3, FAST).await;
    let cycles = CYCLES * factor();
    let all = SHELLS * cycles;
    let folder = cluster.folder.clone();
    fs::write(folder.join("number"), "0\n").unwrap();
    let tokens = folder.join("tokens");
    let started = Instant::now();
    let mut shells = JoinSet::new();
    for _ in 0..SHELLS {
        let place = folder.to_str().unwrap();
        let mut command = shell(&cluster, "cycle", &["drill", &cycles.to_string(), place]);
        shells.spawn_blocking(move || finish_within(command.spawn().unwrap(), TIME_MAX));
    }
    for kill in 1..=KILLS {
        let enough = || async { (lines(&tokens).len() >= all * kill / (KILLS + 1)).then_some(()) };
        eventually("the shells cycle", TIME_MAX, enough).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.start_node(leader);
        cluster.wait_until_serves(leader).await;
    }
    while let Some(ended) = shells.join_next().await {
        let said = ended.unwrap();
        assert_eq!(said.code, 0, "{}", said.err);
    }
    let took = started.elapsed();
    assert_eq!(
        fs::read_to_string(folder.join("number")).unwrap().trim(),
        all.to_string(),
        "two held it at once"
    );
    let tokens: Vec<i64> = lines(&tokens).iter().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.len() == all && tokens.is_sorted_by(|a, b| a < b), "tokens strictly rise: {tokens:?}");
    let entries = recorded(&cluster, "drill", all).await;
    assert_eq!(each_release_wakes_the_next(&entries), all, "each attempt took effect once");
    assert_eq!(entries.len(), 3 * all);
    println!("{SHELLS} shells, {all} cycles, {KILLS} leaders killed: {took:.1?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shell_that_waits_holds_within_the_lease_of_a_shell_that_was_killed() {
    if !has_curl() {
        return;
    }
    const TTL_MS: u128 = 2_000;
    let cluster = Cluster::start_with_api(3, FAST).await;
    let start = || {
        let child = shell(&cluster, "hold", &["drill", &TTL_MS.to_string()]).spawn().unwrap();
        Running::of(child, &cluster.folder)
    };
    let token =
        |line: String| line.strip_prefix("held ").and_then(|token| token.parse::<u64>().ok()).unwrap();
    let mut holder = start();
    let mut last = token(holder.first_line().await);
    let client = cluster.client().await;
    let mut waits = Vec::new();
    for _ in 0..3 * factor() {
        let mut next = start();
        let in_queue =
            || async { (client.get_children("/locks/drill").await.unwrap().names.len() == 2).then_some(()) };
        eventually("the next one in the queue", secs(20), in_queue).await;
        let killed = Instant::now();
        holder.child.kill().unwrap();
        let now = token(next.first_line().await);
        let waited = killed.elapsed().as_millis();
        // A request of the dead shell may have been under way, and the answer has to come back.
        assert!(waited < TTL_MS + 1_500, "{waited} ms");
        assert!(now > last, "{now} after {last}");
        holder.child.wait().unwrap();
        waits.push(waited);
        (holder, last) = (next, now);
    }
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    println!("killed while it held, with a lease of {TTL_MS} ms: the next one after {waits:?} ms");
}

/// By HTTP; what the lock guards is written by a client beside it.
async fn by_http(apis: Vec<String>, client: Client, n: usize, turns: usize) -> Vec<Grant> {
    let ask = |turn: usize, path: &'static str, body: Value| {
        let api = apis[(n + turn) % apis.len()].clone();
        async move { post(&api, path, &body).await.unwrap().1 }
    };
    let lease = ask(0, "/v1/leases", json!({ "ttl_ms": 30_000 })).await;
    let mut grants = Vec::new();
    for turn in 0..turns {
        let attempt =
            json!({ "secret": lease["secret"], "request_id": format!("{turn}"), "wait_ms": 10_000 });
        let token = loop {
            let standing = ask(turn, "/v1/locks/nightly/acquire", attempt.clone()).await;
            match standing["state"].as_str() {
                Some("held") => break standing["token"].as_str().unwrap().to_owned(),
                Some("waiting") => {}
                _ => panic!("{standing}"),
            }
        };
        let Znode { data, stat } = client.get(WITNESS).await.unwrap();
        client.set(WITNESS, Some(token.clone().into()), Some(stat.version)).await.unwrap();
        let before = std::str::from_utf8(&data.unwrap()).unwrap().parse().unwrap();
        let release = json!({ "secret": lease["secret"], "token": token });
        grants.push(Grant { who: format!("http-{n}"), token: token.parse().unwrap(), before });
        let released = ask(turn, "/v1/locks/nightly/release", release).await;
        assert_eq!(released, json!({ "released": true }));
    }
    grants
}

/// `rowlock lock`, whose command writes what the lock guards.
fn by_command(folder: PathBuf, endpoints: String, n: usize, turns: usize) -> Vec<Grant> {
    const SCRIPT: &str = r#"
        seen=$("$0" get -o json /witness); version=${seen##*\"version\":}; before=${seen#*\"data\":\"}
        "$0" set --version "${version%%[!0-9]*}" /witness "$ROWLOCK_LOCK_TOKEN" >/dev/null || exit 1
        echo "$ROWLOCK_LOCK_TOKEN ${before%%\"*}""#;
    let mut grants = Vec::new();
    for _ in 0..turns {
        let binary = env!("CARGO_BIN_EXE_rowlock");
        let mut command = rowlock(&folder, &["lock", "nightly", "sh", "-c", SCRIPT, binary]);
        let said = finish_within(command.env("ROWLOCK_ENDPOINTS", &endpoints).spawn().unwrap(), TIME_MAX);
        let numbers: Vec<i64> = said.out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [token, before] = numbers[..] else { panic!("{} {} {}", said.code, said.out, said.err) };
        grants.push(Grant { who: format!("command-{n}"), token, before });
    }
    grants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_kazoo_curator_commands_and_our_client_stand_in_one_queue_and_each_release_wakes_the_next() {
    let cluster = Cluster::start_with_api(3, "").await;
    let (client, hosts, turns) = (cluster.client().await, cluster.endpoints(), TURNS * factor());
    client.create(WITNESS, Some("0".into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let gate = client.mutex_at(LOCK).lock().await.unwrap();
    let mut contenders = JoinSet::new();
    let mut kinds = BTreeSet::from(["http", "command", "rowlock"]);
    for (command, name, kind) in
        [(kazoo(), "contender.py", "kazoo"), (curator(), "Contender.java", "curator")]
    {
        let Some(mut command) = command else { continue };
        command.arg(crate::mixed_queue::script(name)).args([&hosts, LOCK, WITNESS, &EACH.to_string()]);
        command.arg(turns.to_string());
        kinds.insert(kind);
        contenders.spawn(async { grants_of(said(command).await) });
    }
    let apis: Vec<String> = cluster.ids().into_iter().map(|id| cluster.api(id).to_owned()).collect();
    for n in 0..EACH {
        contenders.spawn(by_http(apis.clone(), cluster.client().await, n, turns));
        contenders.spawn(contender(cluster.client().await, n, turns));
        let (folder, hosts) = (cluster.folder.clone(), hosts.clone());
        contenders.spawn(async move {
            tokio::task::spawn_blocking(move || by_command(folder, hosts, n, turns)).await.unwrap()
        });
    }
    let everybody = || async {
        (client.get_children(LOCK).await.unwrap().names.len() == 1 + kinds.len() * EACH).then_some(())
    };
    eventually("everybody in the queue", TIME_MAX, everybody).await;
    let started = Instant::now();
    gate.release().await.unwrap();
    let mut grants = Vec::new();
    while let Some(some) = contenders.join_next().await {
        grants.extend(some.unwrap());
    }
    let (took, all) = (started.elapsed(), kinds.len() * EACH * turns);
    for kind in &kinds {
        let own = grants.iter().filter(|grant| grant.who.starts_with(kind)).count();
        assert_eq!(own, EACH * turns, "{kind} has had all its turns");
    }
    check(grants, all, client.get(WITNESS).await.unwrap().stat.version);
    let entries = recorded(&cluster, "nightly", all + 1).await;
    assert_eq!(each_release_wakes_the_next(&entries), all + 1);
    println!("{kinds:?}: {all} grants in {took:.1?}");
    let mut last = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    assert!(last.children(LOCK).await.is_empty(), "nobody has left a place behind");
    last.close().await;
}
