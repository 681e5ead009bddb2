//! Backups of real clusters: what a restore means for those who held locks, and for the old nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use rowlock_client::{Acl, CreateMode};

use crate::support::cluster::Cluster;
use crate::support::command::{Said, finish, rowlock};
use crate::support::{eventually, http, secs};

/// The longest session timeout, and so the grace of a restored cluster.
const LONGEST: std::time::Duration = secs(8);
const SETTINGS: &str = "[session]\nmin_timeout_ms = 200\nmax_timeout_ms = 8000\n\
                        [client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n";
const SUPERUSER: &str = "digest:super:test";

async fn run(cluster: &Cluster, arguments: &[&str], auth: Option<&str>) -> Said {
    let mut command = rowlock(&cluster.folder, arguments);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints());
    auth.map(|auth| command.env("ROWLOCK_AUTH", auth));
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

async fn save(cluster: &Cluster, file: &str) {
    let said = run(cluster, &["backup", "save", file], Some(SUPERUSER)).await;
    assert_eq!(said.code, 0, "{}", said.err);
}

/// To load balancers, operators and clients.
async fn says_that_sessions_are_not_opened_yet(cluster: &Cluster) {
    let refused = http::get_refused(cluster.http(1), "/readyz").await;
    assert!(refused.is_some_and(|why| why.contains("sessions are opened in")), "no client gets a session");
    let http = (1..=3).map(|id| cluster.http(id).to_owned()).collect::<Vec<_>>().join(",");
    let endpoints = cluster.endpoints();
    let commands = [
        &["get", "/kept", "--connect-timeout", "1", "--endpoints", &endpoints][..],
        &["lock", "job", "-w", "1", "--endpoints", &endpoints, "true"],
        &["doctor", "--endpoints", &endpoints],
        &["health", "--http", cluster.http(1)],
        &["status", "--http", &http],
    ];
    // All at once: the grace is short.
    let all = futures_util::future::join_all(commands.map(|arguments| run(cluster, arguments, None)));
    for (said, arguments) in all.await.iter().zip(commands) {
        let text = format!("{}{}", said.out, said.err);
        let why = if arguments[0] == "status" { "grace: sessions in" } else { "sessions are opened in" };
        assert!(said.code != 0 && text.contains(why), "{arguments:?}: {} {text}", said.code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_grants_a_lock_when_its_old_holder_has_given_up_and_with_a_larger_token() {
    let mut cluster = Cluster::start(3, SETTINGS).await;
    let client = cluster.client().await;
    client.create("/kept", Some("before".into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let held = client.mutex("job").lock().await.unwrap();
    save(&cluster, "state.backup").await;
    assert_eq!(
        fs::metadata(cluster.folder.join("state.backup")).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // What comes after the backup is lost, but for the order of tokens.
    client.create("/later", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let old_token = held.token().0;

    cluster.kill_all();
    let old_disk = cluster.folder.join("old");
    fs::rename(cluster.folder.join("data"), &old_disk).unwrap();
    let said = run(&cluster, &["backup", "restore", "state.backup", "--node", "1"], None).await;
    assert_eq!(said.code, 0, "{}", said.err);
    let founding = said.out.lines().find_map(|line| line.split_once("--cluster-id ")).unwrap().1;
    for node in ["2", "3"] {
        let on = ["backup", "restore", "state.backup", "--node", node, "--cluster-id"];
        let alone = run(&cluster, &[&on[..], &[&founding[..32]]].concat(), None).await;
        assert!(alone.code == 64 && alone.err.contains("with @ and the time"), "{}", alone.err);
        let joined = run(&cluster, &[&on[..], &[founding]].concat(), None).await;
        assert_eq!(joined.code, 0, "{}", joined.err);
    }
    assert!(said.out.contains("ended: 2 sessions with 1 ephemeral znode"), "{}", said.out);
    let restarted = Instant::now();
    cluster.ids().into_iter().for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;
    says_that_sessions_are_not_opened_yet(&cluster).await;

    let lost = tokio::spawn(async move { (held.lost().await, Instant::now()) });
    let next = cluster.client().await;
    let granted = next.mutex("job").lock().await.unwrap();
    let granted_at = Instant::now();
    assert!(granted_at - restarted >= LONGEST, "a session was opened before the grace was over");
    assert!(granted.token().0 > old_token && granted.token().0 >> 40 == 2, "{}", granted.token());
    let (_, lost_at) = lost.await.unwrap();
    assert!(lost_at <= granted_at, "the old holder believed in its lock when it was granted anew");
    assert_eq!(next.get("/kept").await.unwrap().data, Some("before".into()));
    assert_eq!(next.exists("/later").await.unwrap(), None);
    cluster.wait_for_equal_digests().await;
    let state = cluster.status(1).await.unwrap()["state"].clone();
    let id = state["cluster_id"].as_str().unwrap();
    assert!(said.out.contains(id) && state["grace_ms"] == 0, "{state} {}", said.out);

    // An old node with its old disk is none of this cluster.
    cluster.stop(3).await;
    cluster.wipe(3);
    fs::rename(old_disk.join("node-3"), cluster.data(3)).unwrap();
    cluster.start_node(3);
    let refused = || async { cluster.log(3).contains("another cluster of the same name").then_some(()) };
    eventually("the old node is refused", secs(30), refused).await;
    granted.release().await.unwrap();
    assert!(cluster.status(3).await.is_none_or(|status| status["serving"] == false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_for_superusers_and_a_bad_file_makes_no_folder() {
    let mut cluster = Cluster::start(1, SETTINGS).await;
    let said = run(&cluster, &["backup", "save", "state.backup"], None).await;
    assert_eq!((said.code, cluster.folder.join("state.backup").exists()), (1, false), "{}", said.err);
    assert!(said.err.contains("only superusers"), "{}", said.err);
    assert!(!cluster.folder.join("state.backup.part").exists(), "a part is left");
    save(&cluster, "state.backup").await;
    let said = run(&cluster, &["backup", "save", "state.backup"], Some(SUPERUSER)).await;
    assert_eq!(said.code, 73, "{}", said.err);
    assert!(said.err.contains("is there already"), "{}", said.err);
    let said = run(&cluster, &["backup", "verify", "state.backup"], None).await;
    assert!(said.code == 0 && said.out.contains("every byte is as it was written"), "{}", said.err);

    let restore = ["backup", "restore", "state.backup", "--all", "--no-grace"];
    let said = run(&cluster, &restore, None).await;
    assert!(said.code == 73 && said.err.contains("has content already"), "{}", said.err);
    cluster.kill_all();
    cluster.forget_everything();
    let file = cluster.folder.join("state.backup");
    let good = fs::read(&file).unwrap();
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 4;
    fs::write(&file, damaged).unwrap();
    let said = run(&cluster, &restore, None).await;
    assert!(said.code == 1 && said.err.contains("is damaged"), "{}", said.err);
    assert!(!cluster.data(1).exists());
    fs::write(&file, good).unwrap();
    assert_eq!(run(&cluster, &restore, None).await.code, 0);
    cluster.start_node(1);
    // Without a grace a session is opened at once.
    cluster.client().await.mutex("job").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_node_becomes_a_cluster_of_one_that_has_all_it_had_and_grants_no_lock_twice() {
    let mut cluster = Cluster::start(3, SETTINGS).await;
    let client = cluster.client().await;
    for number in 0..20 {
        let path = format!("/w{number}");
        client.create(&path, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    }
    cluster.wait_for_equal_digests().await;
    let held = client.mutex("job").lock().await.unwrap();
    let old_token = held.token().0;
    cluster.wait_for_equal_digests().await;
    cluster.kill_all();

    let recover = ["recover", "--node", "3", "--others-are-gone"];
    let said = run(&cluster, &recover, None).await;
    assert!(said.code == 64 && said.err.contains("must be the only voter"), "{}", said.err);
    let old_disk = cluster.folder.join("old-disk");
    fs::rename(cluster.data(1), &old_disk).unwrap();
    cluster.lose(1);
    cluster.lose(2);
    let said = run(&cluster, &recover[..3], None).await;
    assert!(said.code == 64 && said.err.contains("--others-are-gone"), "{}", said.err);
    let said = run(&cluster, &recover, None).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("ended: 1 session with 1 ephemeral znode"), "{}", said.out);

    cluster.start_node(3);
    cluster.wait_until_serves(3).await;
    let lost = tokio::spawn(async move { (held.lost().await, Instant::now()) });
    let next = cluster.client_of(cluster.endpoint(3)).await;
    let granted = next.mutex("job").lock().await.unwrap();
    let granted_at = Instant::now();
    assert!(granted.token().0 > old_token);
    let (_, lost_at) = lost.await.unwrap();
    assert!(lost_at <= granted_at, "the old holder believed in its lock when it was granted anew");
    for number in 0..20 {
        assert!(next.exists(&format!("/w{number}")).await.unwrap().is_some(), "/w{number}");
    }
    // A node that was thought gone comes back with its disk: it is none of this cluster.
    cluster.add_learner(1);
    fs::rename(&old_disk, cluster.data(1)).unwrap();
    cluster.start_node(1);
    let refused = || async { cluster.log(1).contains("another cluster of the same name").then_some(()) };
    eventually("the old node is refused", secs(30), refused).await;
    assert!(cluster.status(1).await.is_none_or(|status| status["serving"] == false));
    granted.release().await.unwrap();
}
