//! `rowlock up`, as a new user runs it: the demonstration must keep every promise, and no process may stay
//! behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::FAST;
use crate::support::command::{Said, finish, rowlock, run};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_cluster_keeps_every_promise_too_and_its_first_lines_let_a_client_in() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_owned();
    fs::write(here.join("cluster.toml"), file()).unwrap();
    let path = here.clone();
    let said = tokio::task::spawn_blocking(move || up(&path, &["--tls"])).await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(said.out.matches("kept  ").count(), 5, "{}", said.out);

    // The certificates are kept with the data.
    let certificate = fs::read(here.join("data/up/tls/node-1.pem")).unwrap();
    let mut up = rowlock(&here, &["up", "--no-demo", "--tls", "--keep"]).spawn().unwrap();
    let mut out = BufReader::new(up.stdout.take().unwrap());
    let exports: Vec<String> = tokio::task::block_in_place(|| {
        let lines = out.by_ref().lines().map(Result::unwrap);
        lines.filter_map(|line| line.trim().strip_prefix("export ").map(str::to_owned)).take(2).collect()
    });
    assert_eq!(fs::read(here.join("data/up/tls/node-1.pem")).unwrap(), certificate);
    let words = exports.iter().flat_map(|line| line.split_whitespace());
    let set: Vec<(String, String)> =
        words.filter_map(|word| word.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let ask = |arguments: &[&str], way: &[(String, String)]| {
        let mut command = rowlock(&here, arguments);
        command.envs(way.iter().cloned());
        finish(command.spawn().unwrap())
    };
    let taken = tokio::task::block_in_place(|| ask(&["lock", "l", "-c", "echo $ROWLOCK_LOCK_NAME"], &set));
    assert_eq!((taken.code, taken.out.as_str()), (0, "l\n"), "{}", taken.err);
    // Of the two lines only the first: the addresses, and nothing to show.
    let refused = tokio::task::block_in_place(|| ask(&["get", "/", "--connect-timeout", "1"], &set[..1]));
    assert!(refused.code == 69 && refused.err.contains("the server wants TLS"), "{}", refused.err);
    kill_process(Pid::from_child(&up), Signal::TERM).unwrap();
    assert!(tokio::task::block_in_place(|| up.wait()).unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let stays = format!(" MB of data and logs stay in {}", here.join("data/up").display());
    assert!(rest.contains(&stays), "{rest}");
    assert_nothing_runs_in(&here);
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
