//! `rowlock up`, as a new user runs it: the demonstration must keep every promise, and no process may stay
//! behind.

use std::fs;
use std::path::Path;

use crate::support::cluster::FAST;
use crate::support::command::{Said, run};
use crate::support::{cluster, ports};

/// A cluster.toml of three nodes on free ports.
fn file() -> String {
    let mut text = FAST.to_owned();
    for id in 1..=3 {
        let (client, peer, http) = (ports::address(), ports::address(), ports::address());
        text.push_str(&format!(
            "[[node]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\nhttp = \"{http}\"\n"
        ));
    }
    text
}

fn up(folder: &Path, arguments: &[&str]) -> Said {
    let mut all = vec!["up", "--demo-only"];
    all.extend(arguments);
    run(folder, &all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demonstration_keeps_every_promise_while_the_leader_dies() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cluster.toml"), file()).unwrap();
    let path = folder.path().to_owned();
    let said = tokio::task::spawn_blocking(move || up(&path, &[])).await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(said.out.matches("kept  ").count(), 5, "{}", said.out);
    assert!(said.out.contains("the leader, is killed"), "{}", said.out);
    assert!(!said.out.contains('\x1b'), "no escape codes without a terminal");
    assert_nothing_runs_in(folder.path());

    // What was there can be kept.
    let path = folder.path().to_owned();
    let said = tokio::task::spawn_blocking(move || up(&path, &["--keep"])).await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_nothing_runs_in(folder.path());
}

/// No process has this folder on its command line.
fn assert_nothing_runs_in(folder: &Path) {
    let folder = folder.to_str().unwrap();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = fs::read(process.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains(folder), "still runs: {line}");
    }
}
