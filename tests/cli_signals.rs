//! Signals to `rowlock` itself: while it connects, while it leaves a cluster that does not answer, and those
//! that it was started to ignore.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cli_under_lock::{Running, queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{finish, rowlock};
use crate::support::{eventually, http, one_node, secs};

/// 128 and the number of SIGTERM. (SIGINT may be ignored where the tests were started in the background.)
const TERMINATED: i32 = 128 + 15;
const UNAVAILABLE: i32 = 69;
/// Half of what is waited for without a signal: ten seconds.
const SOON: Duration = secs(5);

/// A server that accepts connections and never answers.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Waits until a client has connected, and keeps the connection.
async fn connected(listener: &TcpListener) -> std::net::TcpStream {
    let listener = listener.try_clone().unwrap();
    tokio::task::spawn_blocking(move || listener.accept().unwrap().0).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_a_command_at_once_that_connects() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code) in [
        (&["lock", "l", "true"][..], TERMINATED),
        (&["sem", "-n", "2", "s", "true"], TERMINATED),
        (&["elect", "e", "me", "--", "true"], TERMINATED),
        (&["elect", "--listen", "e"], 0),
        (&["create", "-e", "/x"], TERMINATED),
    ] {
        let (listener, address) = silent();
        let mut command = rowlock(folder.path(), arguments);
        let child = command.env("ROWLOCK_ENDPOINTS", address).spawn().unwrap();
        let _connection = connected(&listener).await;
        let running = Running::of(child, folder.path());
        running.signal(Signal::TERM);
        let told = Instant::now();
        assert_eq!(running.end().await.code, code, "{arguments:?}");
        assert!(told.elapsed() < SOON, "{arguments:?}: {:?}", told.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_of_a_lock_bounds_connecting_too() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["lock", "-n", "l", "true"][..],
        &["lock", "-w", "0.5", "l", "true"],
        &["sem", "--nonblock", "-n", "2", "s", "true"],
        &["elect", "-w", "0.5", "e", "me", "--", "true"],
    ] {
        let (_listener, address) = silent();
        let begun = Instant::now();
        let mut command = rowlock(folder.path(), arguments);
        let child = command.env("ROWLOCK_ENDPOINTS", address).spawn().unwrap();
        let said = Running::of(child, folder.path()).end().await;
        assert_eq!(said.code, UNAVAILABLE, "{arguments:?}: {}", said.err);
        assert!(begun.elapsed() < secs(8), "{arguments:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_holders_and_waiters_at_once_when_the_cluster_is_gone() {
    let mut cluster = Cluster::start(1, FAST).await;
    let mut holder = start(&cluster.folder, &["lock", "--ttl", "40", "--disconnect-grace", "0", "l"]);
    holder.first_line().await;
    let flags = ["lock", "--ttl", "40", "--disconnect-grace", "0", "l", "true"];
    let waiter = start(&cluster.folder, &flags);
    queue_of(&cluster, "/locks/l", 2).await;
    cluster.kill(1);
    for (running, code) in [(waiter, TERMINATED), (holder, 0)] {
        running.signal(Signal::TERM);
        let told = Instant::now();
        assert_eq!(running.code().await, Some(code));
        assert!(told.elapsed() < SOON, "{:?}", told.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_that_were_ignored_at_the_start_stay_ignored_in_the_command_too() {
    let cluster = Cluster::start(1, FAST).await;
    // What nohup and a shell's `&` do before they start something.
    let script = "trap '' HUP INT QUIT; exec \"$0\" lock l -c 'grep SigIgn /proc/$$/status > mask; echo > started; \
                  while [ ! -e finish ]; do sleep 0.02; done; exit 3'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_rowlock")]).current_dir(&cluster.folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command.spawn().unwrap(), &cluster.folder);
    running.wrote("started").await;
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        running.signal(signal);
    }
    let mask = running.wrote("mask").await;
    let mask = u64::from_str_radix(mask.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 0b111, 0b111, "SIGHUP, SIGINT and SIGQUIT are ignored in the command: {mask:x}");
    // Whatever the signals would do, they would have done it to the one that is next in the queue before it
    // is granted.
    let next = start(&cluster.folder, &["lock", "l", "true"]);
    queue_of(&cluster, "/locks/l", 2).await;
    fs::write(cluster.folder.join("finish"), "").unwrap();
    assert_eq!(running.code().await, Some(3));
    assert_eq!(next.end().await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_runs_its_command_although_its_binary_was_replaced_meanwhile() {
    let cluster = Cluster::start(1, FAST).await;
    let mut holder = start(&cluster.folder, &["lock", "l"]);
    holder.first_line().await;
    let installed = cluster.folder.join("rowlock");
    fs::copy(env!("CARGO_BIN_EXE_rowlock"), &installed).unwrap();
    let mut command = Command::new(&installed);
    command.args(["lock", "l", "-c", "echo ran; exit 5"]).current_dir(&cluster.folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiter = Running::of(command.spawn().unwrap(), &cluster.folder);
    queue_of(&cluster, "/locks/l", 2).await;
    fs::remove_file(&installed).unwrap();
    fs::write(&installed, "another version\n").unwrap();
    holder.end_with_signal().await;
    let said = waiter.end().await;
    assert_eq!((said.code, said.out.as_str()), (5, "ran\n"), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_outlives_its_terminal_and_the_reader_of_its_log() {
    let _turn = crate::support::cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let http_address = one_node(folder.path(), "");
    let mut child = rowlock(folder.path(), &["serve", "--node", "1", "--log", "debug"]).spawn().unwrap();
    // Its output from now on has no reader.
    drop((child.stdout.take(), child.stderr.take()));
    let serves = async || http::status(&http_address).await.filter(|s| s["serving"] == true).map(drop);
    eventually("the node serves", secs(60), &serves).await;
    let running = Running::of(child, folder.path());
    running.signal(Signal::HUP);
    create_and_delete(folder.path()).await;
    eventually("the node serves on", secs(10), serves).await;
    running.signal(Signal::TERM);
    assert_eq!(running.code().await, Some(0), "it ended before, and by something else");
}

async fn create_and_delete(folder: &Path) {
    for arguments in [["create", "/x"], ["delete", "/x"]] {
        let child = rowlock(folder, &arguments).spawn().unwrap();
        let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
        assert_eq!(said.code, 0, "{}", said.err);
    }
}
