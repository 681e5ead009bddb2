//! Readers that leave early (`rowlock locks | head -1`): `rowlock` ends quietly, and passes on a command's
//! own exit code.

use std::process::Stdio;

use crate::cli_under_lock::{Running, queue_of, start};
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::rowlock;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_read_to_the_end_are_no_failure() {
    let cluster = Cluster::start(1, FAST).await;
    let mut holder = start(&cluster.folder, &["lock", "l"]);
    holder.first_line().await;
    for arguments in [
        &["locks"][..],
        &["queue", "l"],
        &["history", "l"],
        &["session", "ls"],
        &["ls", "-R", "/"],
        &["stat", "/locks"],
        &["create", "/x"],
        &["get", "-o", "json", "/x"],
        &["status"],
        &["status", "-o", "json"],
        &["top", "--interval", "0.2"],
        &["elect", "--listen", "e"],
    ] {
        let mut child = rowlock(&cluster.folder, arguments).spawn().unwrap();
        // Before it can have an answer.
        drop(child.stdout.take());
        child.stdout = Some(nothing());
        let said = Running::of(child, &cluster.folder).end().await;
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{arguments:?}");
    }
    assert_eq!(start(&cluster.folder, &["get", "/x"]).end().await.code, 0, "what was asked for was done");
    holder.end_with_signal().await;
}

/// The stdout of something that says nothing.
fn nothing() -> std::process::ChildStdout {
    let mut child = std::process::Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    child.stdout.take().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_under_a_lock_keeps_its_code_when_nobody_reads_what_rowlock_says() {
    let cluster = Cluster::start(1, FAST).await;
    for arguments in [
        &["lock", "-v", "l", "-c", "exit 7"][..],
        &["sem", "-v", "-n", "1", "s", "-c", "exit 7"],
        &["elect", "-v", "e", "me", "-c", "exit 7"],
    ] {
        let mut child = rowlock(&cluster.folder, arguments).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(Running::of(child, &cluster.folder).code().await, Some(7), "{arguments:?}");
    }
    // One that only holds does so, too.
    let mut child = rowlock(&cluster.folder, &["lock", "l"]).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    let holder = Running::of(child, &cluster.folder);
    // It says nothing that can be read. Without this the waiter may be the first.
    queue_of(&cluster, "/locks/l", 1).await;
    let waiter = start(&cluster.folder, &["lock", "l", "true"]);
    queue_of(&cluster, "/locks/l", 2).await;
    holder.end_with_signal().await;
    assert_eq!(waiter.end().await.code, 0);
}
