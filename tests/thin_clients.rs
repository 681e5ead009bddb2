//! The clients of `clients/`, against a cluster of real processes: the scenarios that are the same for all
//! languages, the example of each README, and their own tests. A language that is not installed is left out
//! with a word.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mixed_queue::kazoo;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish};

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Python 3.9 or newer, if there is one.
fn python() -> Option<Command> {
    let mut probe = Command::new("python3");
    probe.args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"]).stdin(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        println!("python3 is not installed, or older than 3.9: its client is not tried");
        return None;
    }
    let mut python = Command::new("python3");
    // No caches of byte code beside the sources.
    python.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(clients().join("python"));
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(python)
}

/// Node.js 20.3 or newer, if there is one.
fn node() -> Option<Command> {
    const NEW_ENOUGH: &str = "const [major, minor] = process.versions.node.split('.').map(Number); process.exit(major < 20 || major === 20 && \
         minor < 3 ? 1 : 0)";
    let mut probe = Command::new("node");
    probe.args(["-e", NEW_ENOUGH]).stdin(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        println!("node is not installed, or older than 20.3: the client for TypeScript is not tried");
        return None;
    }
    let mut node = Command::new("node");
    node.current_dir(clients().join("typescript"));
    node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(node)
}

/// Go 1.19 or newer, if there is one. It asks nothing of the network.
fn go() -> Option<Command> {
    let mut probe = Command::new("go");
    let version = probe.args(["env", "GOVERSION"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let version = version.ok().and_then(|said| String::from_utf8(said.stdout).ok()).unwrap_or_default();
    let minor = version.trim().strip_prefix("go1.").and_then(|rest| rest.split('.').next()?.parse().ok());
    if minor.is_none_or(|minor: u32| minor < 19) {
        println!("go is not installed, or older than 1.19: its client is not tried");
        return None;
    }
    let mut go = Command::new("go");
    go.envs([("GOFLAGS", "-mod=mod"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOWORK", "off")]);
    go.current_dir(clients().join("go"));
    go.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(go)
}

async fn run(mut command: Command) -> Said {
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

/// The runner of a language: the scenarios, and the example of its README.
async fn conforms(mut command: Command, runner: &[&str]) {
    let it = Cluster::start_with_api(3, FAST).await;
    let urls: Vec<String> = it.ids().into_iter().map(|id| format!("http://{}", it.api(id))).collect();
    command.args(runner).arg(urls.join(","));
    let said = run(command).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.ends_with("9 scenarios\n"), "{}", said.out);
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
    node.args(["--test", "tests/client.test.js"]);
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
    let mut gofmt = Command::new("gofmt");
    gofmt.args(["-l", "."]).current_dir(clients().join("go")).stdin(Stdio::null());
    let said = run({
        gofmt.stdout(Stdio::piped()).stderr(Stdio::piped());
        gofmt
    });
    let said = said.await;
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
    kazoo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = run(kazoo).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    println!("{}", said.out);
}
