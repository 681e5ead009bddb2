//! The clients of `client/`, against a cluster of real processes: the scenarios that are the same for all
//! languages, the example of each README, and their own tests. A language that is not installed, or
//! too old, is named and skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::conformance::scenarios;
use crate::gateway::gateway;
use crate::mixed_queue::kazoo;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish_within};
use crate::support::secs;
use crate::support::tools::{self, Tool};

pub fn clients() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("client")
}

fn python() -> Option<Command> {
    let mut python = tools::command(tools::python("the client for Python")?);
    python.current_dir(clients().join("python"));
    Some(python)
}

fn node() -> Option<Command> {
    let (programs, probe) = (&[Path::new("node")], &["-p", "process.versions.node"]);
    let skipped = "the client for TypeScript";
    let found = Tool { name: "Node.js", programs, probe, least: &[20, 3], skipped }.find()?;
    let mut node = tools::command(found);
    node.current_dir(clients().join("typescript"));
    Some(node)
}

/// It asks nothing of the network.
fn go() -> Option<Command> {
    let (programs, probe) = (&[Path::new("go")], &["version"]);
    let found = Tool { name: "Go", programs, probe, least: &[1, 19], skipped: "the client for Go" }.find()?;
    let mut go = tools::command(found);
    go.envs([("GOFLAGS", "-mod=mod"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOWORK", "off")]);
    go.current_dir(clients().join("go"));
    Some(go)
}

pub async fn run(mut command: Command) -> Said {
    tokio::task::spawn_blocking(move || finish_within(command.spawn().unwrap(), secs(300))).await.unwrap()
}

/// Answers that a proxy gives in the place of a node; the empty one keeps its client waiting for ever.
const STRANGE: [&str; 6] = [
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "",
    "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>",
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"state\"",
];

/// The URL of something that takes requests and is no node.
async fn strange_node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in STRANGE.iter().cycle() {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    url
}

/// The runner of a language: the scenarios, and the example of its README.
pub async fn conforms(mut command: Command, runner: &[&str]) {
    let it = Cluster::start_with_api(3, FAST).await;
    let leader = it.leader().await;
    let mut ids = it.ids();
    ids.sort_by_key(|id| *id == leader);
    // Each client asks this one first, and the leader last.
    let mut urls = vec![strange_node().await];
    urls.extend(ids.iter().map(|id| format!("http://{}", it.api(*id))));
    command.args(runner).arg(urls.join(","));
    command.env("ROWLOCK_GATEWAY", gateway(it.api(ids[0]).to_owned()).await);
    let said = run(command).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let all = format!("{} scenarios\n", scenarios().len());
    assert!(said.out.ends_with(&all), "{}", said.out);
    if it.leader().await == leader {
        let invited = it.metric_of_all("rowlock_sessions_invited_total").await;
        let at_leader = it.metric(leader, "rowlock_api_requests_total").await;
        let at_first = it.metric(ids[0], "rowlock_api_requests_total").await;
        assert!(
            invited > 0 && at_leader > at_first,
            "{invited} invited: {at_leader} and {at_first} requests"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pythons_client_does_what_all_clients_must_do() {
    let Some(python) = python() else { return };
    conforms(python, &["tests/conformance.py"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_typescript_does_what_all_clients_must_do() {
    let Some(node) = node() else { return };
    conforms(node, &["tests/conformance.js"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_typescript_passes_its_own_tests() {
    let Some(mut node) = node() else { return };
    node.args(["--test", "tests/client.test.js", "tests/abuse.test.js", "tests/observer.test.js"]);
    let said = run(node).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.contains("# fail 0"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pythons_client_passes_its_own_tests() {
    let Some(mut python) = python() else { return };
    python.args(["-W", "error", "-m", "unittest", "discover", "-s", "tests"]);
    let said = run(python).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.err.contains("\nOK"), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_go_does_what_all_clients_must_do() {
    let Some(go) = go() else { return };
    conforms(go, &["run", "./internal/conformance"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_for_go_passes_its_own_tests_and_is_written_as_go_is() {
    for arguments in [&["vet", "./..."][..], &["test", "-count=1", "./..."]] {
        let Some(mut go) = go() else { return };
        go.args(arguments);
        let said = run(go).await;
        assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
    }
    // It names no version, and comes with Go.
    let Some(mut go) = go() else { return };
    let root = run({
        go.args(["env", "GOROOT"]);
        go
    });
    let gofmt = Path::new(root.await.out.trim()).join("bin/gofmt");
    if !gofmt.exists() {
        println!("gofmt is SKIPPED: {} is not there", gofmt.display());
        return;
    }
    let mut gofmt = tools::command(gofmt);
    gofmt.args(["-l", "."]).current_dir(clients().join("go"));
    let said = run(gofmt).await;
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoos_shared_lock_stands_in_one_queue_with_its_own_locks_and_with_clients_by_http() {
    let Some(mut kazoo) = kazoo() else { return };
    let it = Cluster::start_with_api(3, "").await;
    let urls: Vec<String> = it.ids().into_iter().map(|id| format!("http://{}", it.api(id))).collect();
    kazoo.current_dir(clients().join("python")).args([
        "tests/kazoo_queue.py",
        &it.endpoints(),
        &urls.join(","),
    ]);
    let said = run(kazoo).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    println!("{}", said.out);
}
