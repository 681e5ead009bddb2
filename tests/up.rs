//! `rowlock up`, as a new user runs it: the demonstration must keep every promise, and no process may stay
//! behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::FAST;
use crate::support::command::{Said, finish, rowlock, run};
use crate::support::{cluster, http, ports};

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
    let mut all = vec!["up", "--check", "--data", "data/up"];
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
    assert!(rest.contains(&stays) && rest.contains("/ui/"), "{rest}");
    assert_nothing_runs_in(&here);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_for_development_is_found_by_commands_in_its_folder_and_has_a_superuser() {
    let _turn = cluster::turn().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_owned();
    tokio::task::block_in_place(|| {
        let start = || {
            let mut dev = rowlock(&here, &["dev", "-o", "json"]).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(dev.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            (dev, serde_json::from_str::<serde_json::Value>(&line).unwrap())
        };
        let (mut dev, first) = start();
        let said = run(&here, &["lock", "l", "-c", "echo $ROWLOCK_LOCK_NAME"]);
        assert_eq!((said.code, said.out.as_str()), (0, "l\n"), "{}", said.err);
        // What only superusers may do: no address, no credential is given.
        let said = run(&here, &["rebalance", "--percent", "100"]);
        assert_eq!(said.code, 0, "{}", said.err);
        let mode = fs::metadata(here.join(".rowlock/superuser")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let stranger =
            rowlock(&here, &["rebalance", "--percent", "100"]).env("ROWLOCK_AUTH", "").spawn().unwrap();
        let said = finish(stranger);
        assert!(said.code == 1 && said.err.contains("rowlock auth new"), "{} {}", said.code, said.err);
        assert_eq!(run(&here, &["create", "/kept"]).code, 0);
        // One port for locks by HTTP and for operators.
        let http = first["http"].as_str().unwrap().trim_start_matches("http://").to_owned();
        for path in ["/readyz", "/metrics", "/v1/locks", "/v1/locks/l", "/v1/openapi.json", "/ui/"] {
            let answer = tokio::runtime::Handle::current().block_on(http::get(&http, path));
            assert!(answer.is_some(), "{path}");
        }
        let end = |dev: &mut std::process::Child| {
            kill_process(Pid::from_child(dev), Signal::TERM).unwrap();
            assert!(dev.wait().unwrap().success());
        };
        end(&mut dev);
        let (mut dev, second) = start();
        assert_eq!(first, second, "ports are kept");
        assert_eq!(run(&here, &["get", "/kept"]).code, 0);
        end(&mut dev);
    });
    assert_nothing_runs_in(&here);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_needs_no_free_usual_port_and_leaves_nothing() {
    let _turn = cluster::turn().await;
    let (folder, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, tmp) = (folder.path().to_owned(), temporary.path().to_owned());
    let said = tokio::task::spawn_blocking(move || {
        finish(rowlock(&path, &["up", "--check"]).env("TMPDIR", tmp).spawn().unwrap())
    });
    let said = said.await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for left in [&folder, &temporary] {
        assert_eq!(fs::read_dir(left.path()).unwrap().count(), 0);
    }
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
