//! Commands that reach a cluster by TLS, as `rowlock tls` makes one.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::cli_under_lock::start;
use crate::support::cluster::Cluster;
use crate::support::command::{Said, finish, rowlock, run};

const UNAVAILABLE: i32 = 69;
const CONFIG: i32 = 78;

/// The addresses are those of `cluster.toml`.
const WAY: [&str; 3] =
    ["--tls-ca=tls/peers-ca.pem", "--tls-cert=tls/client-alice.pem", "--tls-key=tls/client-alice.key"];

/// `arguments`, with how to get in in the place of `%`.
fn way<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let one = |argument: &&'a str| if *argument == "%" { WAY.to_vec() } else { vec![*argument] };
    arguments.iter().flat_map(one).collect()
}

async fn ask(cluster: &Cluster, arguments: &[&str]) -> Said {
    let child = rowlock(&cluster.folder, &way(arguments)).spawn().unwrap();
    tokio::task::spawn_blocking(|| finish(child)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_work_by_tls_with_flags_or_with_the_environment() {
    let it = Cluster::start_encrypted(3).await;
    for (arguments, wanted) in [
        (&["create", "%", "/a", "one"][..], "/a\n"),
        (&["get", "%", "/a"], "one"),
        (&["lock", "%", "l", "-c", "echo $ROWLOCK_LOCK_NAME"], "l\n"),
        (&["ls", "%", "/locks"], "l\n"),
    ] {
        let said = ask(&it, arguments).await;
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, wanted, ""), "{arguments:?}");
    }
    let all = format!("{},{},{}", it.secure(1), it.secure(2), it.secure(3));
    let said = ask(&it, &["status", "%", "--endpoints", &all]).await;
    assert!(said.code == 0 && said.out.contains(it.secure(2)), "{} {}", said.out, said.err);
    let mut command = rowlock(&it.folder, &["get", "/a"]);
    let file = |name: &str| it.folder.join("tls").join(name);
    command.env("ROWLOCK_TLS_CA", file("peers-ca.pem"));
    command
        .env("ROWLOCK_TLS_CERT", file("client-alice.pem"))
        .env("ROWLOCK_TLS_KEY", file("client-alice.key"));
    let child = command.spawn().unwrap();
    let said = tokio::task::spawn_blocking(|| finish(child)).await.unwrap();
    assert_eq!((said.code, said.out.as_str()), (0, "one"), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_lock_is_given_back_by_tls_long_before_its_session_ends() {
    let it = Cluster::start_encrypted(1).await;
    let words = ["lock", "%", "--ttl", "60", "--disconnect-grace", "0", "l", "-c", "echo > held; sleep 60"];
    let mut holder = start(&it.folder, &way(&words));
    holder.wrote("held").await;
    holder.child.kill().unwrap();
    let said = ask(&it, &["lock", "%", "-w", "20", "l", "true"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_in_one_line() {
    let it = Cluster::start_encrypted(1).await;
    let short = ["--connect-timeout", "1"];
    let other = ["--tls-server-name", "other.example"];
    let plain = ["--endpoints", it.secure(1)];
    for (arguments, wanted) in [
        ([&["get", "%", "/"][..], &short, &other].concat(), "and not for other.example)"),
        ([&["get", "/"], &short[..], &plain].concat(), "the server wants TLS)"),
    ] {
        let said = ask(&it, &arguments).await;
        assert!(said.code == UNAVAILABLE && said.err.contains(wanted), "{arguments:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    }
}

#[test]
fn a_key_that_others_may_read_is_refused_before_anything_is_tried() {
    let temp = tempfile::tempdir().unwrap();
    let here = temp.path();
    fs::set_permissions(here, fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["tls", "init", "--nodes", "1"][..], &["tls", "client", "alice"]] {
        assert_eq!(run(here, arguments).code, 0, "{arguments:?}");
    }
    let open =
        |file: &str, mode| fs::set_permissions(here.join(file), fs::Permissions::from_mode(mode)).unwrap();
    open("tls", 0o755);
    open("tls/client-alice.key", 0o640);
    let flags = [
        "--endpoints=127.0.0.1:1",
        "--tls-ca=tls/peers-ca.pem",
        "--tls-cert=tls/client-alice.pem",
        "--tls-key=tls/client-alice.key",
    ];
    let said = run(here, &[&["get", "/"][..], &flags].concat());
    let wanted = "tls/client-alice.key: has a key, and can be read or written by other users of this machine";
    assert!(said.code == CONFIG && said.err.contains(wanted), "{}", said.err);
    // Half of what is needed.
    let said = run(here, &[&["get", "/"][..], &flags[..3]].concat());
    assert!(said.err.contains("ROWLOCK_TLS_CERT needs ROWLOCK_TLS_KEY"), "{}", said.err);
}
