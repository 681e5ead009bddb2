//! fifo, mutual-exclusion, fencing-monotonic across languages: Rowlock's client, kazoo, Curator and a
//! handwritten recipe wait in one queue, and every grant follows its order.
//!
//! Each holder replaces what the previous one wrote, on condition that the version is still the one it read:
//! two holders at once would make one of them fail. What it reads is who was granted before it, so the grants
//! form a chain, and the chain must be the order of the queue znodes' czxids.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use rowlock_client::{Acl, Client, CreateMode, Version, Znode};
use rowlock_proto::request::SetData;
use rowlock_proto::{ErrorCode, Request};
use tokio::task::JoinSet;

use crate::support::cluster::Cluster;
use crate::support::command::{Said, finish_within};
use crate::support::tools::{self, Tool};
use crate::support::{eventually, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS};

pub const LOCK: &str = "/locks/nightly";
pub const WITNESS: &str = "/witness";
const GRANTS: usize = 1_000;
/// Clients of each kind; each has a session of its own.
const CLIENTS: usize = 3;
/// Times that each client of a language takes the lock; the one by hand takes what is left of the thousand.
const ROUNDS: usize = 100;
/// Fifteen seconds of it on a quiet machine.
const TIME_MAX: std::time::Duration = secs(300);

/// One turn of a client.
#[derive(Debug)]
pub struct Grant {
    pub who: String,
    pub token: i64,
    /// The token of the last writer.
    pub before: i64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_grants_across_languages_follow_one_queue() {
    let cluster = Cluster::start(3, "").await;
    let client = cluster.client().await;
    client.create(WITNESS, Some("0".into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let mut gate = RawClient::attach(cluster.endpoint(1), SESSION_MS).await;
    for path in ["/locks", LOCK] {
        gate.create(path, "", CreateMode::Persistent).await.unwrap();
    }
    let first = gate.create(&format!("{LOCK}/_c_gate-lock-"), "", CreateMode::EphemeralSequential).await;
    let first = first.unwrap();

    let mut contenders = JoinSet::new();
    let mut clients = 0;
    let foreign: Vec<Command> = [python(), java()].into_iter().flatten().collect();
    for mut command in foreign {
        let hosts = cluster.endpoints();
        command.args([&hosts, LOCK, WITNESS, &CLIENTS.to_string(), &ROUNDS.to_string()]);
        clients += CLIENTS;
        contenders.spawn(async { grants_of(said(command).await) });
    }
    for n in 0..CLIENTS {
        clients += 1;
        contenders.spawn(contender(cluster.client().await, n, ROUNDS));
    }
    let left = GRANTS - clients * ROUNDS;
    let rounds = |n| left / CLIENTS + usize::from(n < left % CLIENTS);
    for n in 0..CLIENTS {
        clients += 1;
        let id = cluster.ids()[n];
        contenders.spawn(by_hand(RawClient::attach(cluster.endpoint(id), SESSION_MS).await, n, rounds(n)));
    }
    // No client begins before all are in the queue.
    let everybody = || async {
        let queue = client.get_children(LOCK).await.unwrap().names;
        (queue.len() == clients + 1).then_some(())
    };
    eventually("everybody in the queue", TIME_MAX, everybody).await;
    let started = Instant::now();
    gate.delete(&first).await.unwrap();
    let mut grants = Vec::new();
    while let Some(some) = contenders.join_next().await {
        grants.extend(some.unwrap());
    }
    let took = started.elapsed();
    assert!(took < TIME_MAX, "{took:?}");
    check(grants, GRANTS, client.get(WITNESS).await.unwrap().stat.version);
    println!("{GRANTS} grants to {clients} clients in {took:.1?}");
    gate.close().await;
}

/// The chain of grants is the order of the queue.
pub fn check(mut grants: Vec<Grant>, count: usize, writes: Version) {
    assert_eq!(grants.len(), count);
    assert_eq!(writes, Version(count as i32), "every holder wrote once");
    grants.sort_by_key(|grant| grant.token);
    let mut before = 0;
    for grant in &grants {
        assert_eq!(grant.before, before, "{} was not granted in its turn", grant.who);
        assert!(grant.token > before, "the token of {} is not larger", grant.who);
        before = grant.token;
    }
}

/// Our client; each wait ends with its first wake-up.
pub async fn contender(client: Client, n: usize, rounds: usize) -> Vec<Grant> {
    let mut grants = Vec::new();
    for _ in 0..rounds {
        let guard = client.mutex("nightly").lock().await.unwrap();
        assert!(guard.wait_stats().wakeups <= 1, "{:?}", guard.wait_stats());
        let token = guard.token().0;
        let Znode { data, stat } = client.get(WITNESS).await.unwrap();
        client.set(WITNESS, Some(token.to_string().into()), Some(stat.version)).await.unwrap();
        let before = std::str::from_utf8(&data.unwrap()).unwrap().parse().unwrap();
        grants.push(Grant { who: format!("rowlock-{n}"), token, before });
        guard.release().await.unwrap();
    }
    grants
}

/// ZooKeeper's recipe, frame by frame.
async fn by_hand(mut raw: RawClient, n: usize, rounds: usize) -> Vec<Grant> {
    let mut grants = Vec::new();
    for round in 0..rounds {
        let prefix = format!("{LOCK}/_c_{n}-{round}-lock-");
        let own = raw.create(&prefix, "", CreateMode::EphemeralSequential).await.unwrap();
        while let Some(before) = predecessor(&mut raw, &own).await {
            match raw.data(&before, true).await {
                Ok(_) => drop(raw.event().await),
                Err(ErrorCode::NoNode) => {}
                Err(other) => panic!("{other}"),
            }
        }
        let token = raw.data(&own, false).await.unwrap().1.czxid.0;
        let (data, stat) = raw.data(WITNESS, false).await.unwrap();
        let data_now = Some(Bytes::from(token.to_string()));
        let set = SetData { path: WITNESS.to_owned(), data: data_now, version: stat.version };
        raw.call(Request::SetData(set)).await.unwrap();
        let before = std::str::from_utf8(&data).unwrap().parse().unwrap();
        grants.push(Grant { who: format!("by-hand-{n}"), token, before });
        raw.delete(&own).await.unwrap();
    }
    raw.close().await;
    grants
}

async fn predecessor(raw: &mut RawClient, own: &str) -> Option<String> {
    let number = |name: &str| name[name.len() - 10..].parse::<i64>().unwrap();
    let queue = raw.children(LOCK).await;
    let before = queue.iter().filter(|name| number(name) < number(own)).max_by_key(|name| number(name));
    before.map(|name| format!("{LOCK}/{name}"))
}

pub fn grants_of(said: Said) -> Vec<Grant> {
    assert_eq!(said.code, 0, "{}", said.err);
    let grant = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let ["grant", who, token, before] = words[..] else { panic!("{line:?}") };
        Grant { who: who.to_owned(), token: token.parse().unwrap(), before: before.parse().unwrap() }
    };
    said.out.lines().map(grant).collect()
}

pub async fn said(mut command: Command) -> Said {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    tokio::task::spawn_blocking(|| finish_within(child, TIME_MAX)).await.unwrap()
}

pub fn script(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("tests/mixed_queue").join(name)
}

fn python() -> Option<Command> {
    let mut command = kazoo()?;
    command.arg(script("contender.py"));
    Some(command)
}

fn java() -> Option<Command> {
    let mut command = curator()?;
    command.arg(script("Contender.java"));
    Some(command)
}

/// A Python that has kazoo: the system's, or the one that `.ci/clients` has installed for it. Older releases
/// take no other clients' names (`extra_lock_patterns`).
pub fn kazoo() -> Option<Command> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    let installed = cache.join("zk-compat/kazoo-venv/bin/python");
    let programs = &[Path::new("python3"), Path::new("/usr/bin/python3"), &installed];
    let probe = &["-c", "import kazoo.recipe.lock, kazoo.version; print(kazoo.version.__version__)"];
    let skipped = "what needs kazoo (python3-kazoo)";
    let found = Tool { name: "kazoo", programs, probe, least: &[2, 7, 1], skipped }.find()?;
    Some(tools::command(found))
}

pub fn curator() -> Option<Command> {
    let jars =
        ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "zookeeper-jute"];
    let jars: Vec<PathBuf> = jars
        .iter()
        .chain(&["slf4j-api", "slf4j-nop"])
        .map(|jar| Path::new("/usr/share/java").join(format!("{jar}.jar")))
        .collect();
    if let Some(missing) = jars.iter().find(|jar| !jar.exists()) {
        println!("Curator (libcurator-recipes-java) is SKIPPED: there is no {}", missing.display());
        return None;
    }
    // A program of one file is compiled by `java` itself since 11, with the compiler of the JDK.
    let (programs, probe) = (&[Path::new("javac")], &["-version"]);
    Tool { name: "javac", programs, probe, least: &[11], skipped: "Curator" }.find()?;
    let path = std::env::join_paths(jars).unwrap();
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(path);
    Some(command)
}

/// The code block of docs/languages.md in this language that contains this word.
fn example(language: &str, word: &str) -> String {
    let text =
        fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("docs/languages.md"))
            .unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains(word)).expect("the page has this example").to_owned()
}

/// `code` with whatever stands between the quotes of the hosts replaced.
fn with_hosts(code: &str, hosts: &str) -> String {
    let (head, rest) = code.split_once("\"127.0.0.1:2181").expect("the example names the hosts");
    let (_, tail) = rest.split_once('"').unwrap();
    format!("{head}\"{hosts}\"{tail}")
}

#[test]
fn the_page_shows_the_lock_that_stands_in_the_mixed_queue() {
    let tried = fs::read_to_string(script("contender.py")).unwrap();
    let (_, tried) = tried.split_once("# page begin\n").unwrap();
    let (tried, _) = tried.split_once("\n# page end").unwrap();
    assert!(example("python", "KazooClient").starts_with(tried.trim_end()), "the page shows another lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_of_the_page_wait_for_a_lock_that_rust_holds() {
    let (python, java) = (kazoo(), curator());
    if python.is_none() && java.is_none() {
        return;
    }
    let cluster = Cluster::start(3, "").await;
    let client = cluster.client().await;
    let hosts = cluster.endpoints();
    let folder = tempfile::tempdir().unwrap();
    let mut commands = Vec::new();
    if let Some(mut command) = python {
        let code =
            with_hosts(&example("python", "KazooClient"), &hosts).replace("...", "print('held', token)");
        command.args(["-c", &format!("{code}\nzk.stop()")]);
        commands.push(command);
    }
    if let Some(mut command) = java {
        let code = with_hosts(&example("java", "InterProcessMutex"), &hosts)
            .replace("...", "System.out.println(\"held\");");
        let file = folder.path().join("Readme.java");
        let imports = "import org.apache.curator.framework.*;\nimport org.apache.curator.retry.*;\n\
                       import org.apache.curator.framework.recipes.locks.*;";
        let main = format!(
            "{imports}\npublic class Readme {{ public static void main(String[] a) throws Exception {{\n{code}\n\
             client.close(); }} }}"
        );
        fs::write(&file, main).unwrap();
        command.arg(file);
        commands.push(command);
    }
    for command in commands {
        let guard = client.mutex("nightly").lock().await.unwrap();
        let token = guard.token().0;
        let other = tokio::spawn(said(command));
        let queued = || async { (client.get_children(LOCK).await.unwrap().names.len() == 2).then_some(()) };
        eventually("the example in the queue", TIME_MAX, queued).await;
        assert!(!other.is_finished());
        guard.release().await.unwrap();
        let said = other.await.unwrap();
        assert_eq!(said.code, 0, "{}", said.err);
        let held = said.out.trim().strip_prefix("held").expect("the example held the lock").trim();
        assert!(held.is_empty() || held.parse::<i64>().unwrap() > token, "{held} after {token}");
    }
}
