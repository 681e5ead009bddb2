//! `rowlock import` against real clusters: a snapshot that Apache ZooKeeper 3.8.0 wrote, live trees, and
//! imports that are interrupted half-way and run again. With `ROWLOCK_TEST_ZK=host:port` also against a live
//! Apache ZooKeeper.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode, Znode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::command::{Said, finish, rowlock};
use crate::support::eventually;

const REFUSED: i32 = 1;
/// Znodes of [`large_snapshot`] that an import creates.
const LARGE: u64 = 40_401;
/// Not the password of anything but these clusters.
const SUPER: (&str, &str) = ("digest", "super:test");
const SUPER_DIGEST: &str = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";

/// Written by Apache ZooKeeper 3.8.0 when it was restarted.
fn golden() -> String {
    format!("{}/../tests/testdata/zookeeper-3.8.0.snapshot", env!("CARGO_MANIFEST_DIR"))
}

async fn cluster(nodes: u64) -> Cluster {
    Cluster::start(nodes, &format!("{FAST}[client]\nsuper_digest = \"{SUPER_DIGEST}\"\n")).await
}

async fn super_client(cluster: &Cluster) -> Client {
    let client = cluster.client().await;
    client.add_auth(SUPER.0, SUPER.1.as_bytes().to_vec()).await.unwrap();
    client
}

fn start(cluster: &Cluster, auth: bool, arguments: &[&str]) -> Child {
    let mut command = rowlock(&cluster.folder, &[&["import"], arguments].concat());
    command.env("ROWLOCK_SESSION_TIMEOUT", "2s");
    if auth {
        command.env("ROWLOCK_AUTH", format!("{}:{}", SUPER.0, SUPER.1));
    }
    command.spawn().unwrap()
}

async fn end(child: Child) -> Said {
    tokio::task::spawn_blocking(move || finish(child)).await.unwrap()
}

async fn import(cluster: &Cluster, arguments: &[&str]) -> Said {
    end(start(cluster, true, arguments)).await
}

async fn imported(cluster: &Cluster, arguments: &[&str]) -> Value {
    let said = import(cluster, &[arguments, &["-o", "json"]].concat()).await;
    assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
    serde_json::from_str(&said.out).unwrap()
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    client.sync(path).await.unwrap();
    let mut names = client.get_children(path).await.unwrap().names;
    names.sort();
    names
}

/// No import has left anything, but what is named.
async fn assert_only(client: &Client, top: &[&str]) {
    assert_eq!(names(client, "/").await, top);
    assert_eq!(names(client, "/zookeeper").await, ["config", "quota"]);
}

/// Path, data, ACL and version of everything at and below a path, with paths relative to it.
async fn dump(client: &Client, top: &str) -> Vec<(String, Option<Vec<u8>>, Vec<Acl>, i32)> {
    let mut all = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let Znode { data, stat } = client.get(&path).await.unwrap();
        let acl = client.get_acl(&path).await.unwrap().acl;
        left.extend(names(client, &path).await.iter().map(|name| format!("{path}/{name}")));
        let relative = path.strip_prefix(top).unwrap().to_owned();
        all.push((relative, data.map(Into::into), acl, stat.version.0));
    }
    all
}

/// A snapshot file of 40,000 znodes below /big, in folders of 100 whose next sequential number is 103.
fn large_snapshot(folder: &Path) -> PathBuf {
    let mut znodes = vec![("/big".to_owned(), 400)];
    for number in 0..400 {
        znodes.push((format!("/big/d{number:05}"), 103));
        znodes.extend((0..100).map(|child| (format!("/big/d{number:05}/n{child:02}"), 0)));
    }
    snapshot(folder, &znodes)
}

/// A snapshot file of these znodes, each with its next sequential number.
fn snapshot(folder: &Path, znodes: &[(String, i32)]) -> PathBuf {
    let mut file = b"ZKSN\0\0\0\x02".to_vec();
    file.extend([0; 8 + 4 + 4]);
    let root = (String::new(), 1);
    for (path, creates) in [&root].into_iter().chain(znodes) {
        file.extend((path.len() as i32).to_be_bytes());
        file.extend(path.as_bytes());
        file.extend(200_i32.to_be_bytes());
        file.extend([b'x'; 200]);
        file.extend((-1_i64).to_be_bytes());
        file.extend([0; 4 * 8 + 4]);
        file.extend(creates.to_be_bytes());
        file.extend([0; 4 + 8 + 8]);
    }
    file.extend(b"\0\0\0\x01/");
    let (mut a, mut b) = (1_u64, 0_u64);
    for byte in &file {
        a = (a + u64::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    file.extend((b << 16 | a).to_be_bytes());
    file.extend(b"\0\0\0\x01/");
    let path = folder.join("snapshot.7");
    fs::write(&path, file).unwrap();
    path
}

/// Waits until the import has created the znode.
async fn created(client: &Client, path: &str) {
    let exists = || async {
        client.sync("/").await.ok()?;
        client.exists(path).await.ok()?.map(drop)
    };
    eventually("the import has created something", SERVING, exists).await;
}

/// All znodes of [`large_snapshot`] exist, and each folder's counter has exactly the source's number.
async fn assert_large_is_whole(client: &Client) {
    client.sync("/").await.unwrap();
    for number in 0..400 {
        let stat = client.exists(&format!("/big/d{number:05}")).await.unwrap().unwrap();
        assert_eq!((stat.num_children, stat.cversion.0), (100, 2 * 103 - 100), "folder {number}");
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_zookeeper_arrives_whole() {
    let cluster = cluster(3).await;
    let client = super_client(&cluster).await;
    let verdict = imported(&cluster, &["--keep-versions", "--from-snapshot", &golden()]).await;
    assert_eq!((&verdict["verified"]["znodes"], &verdict["verified"]["unreadable"]), (&41.into(), &0.into()));
    let plan = &verdict["plan"];
    assert_eq!(
        (&plan["containers"], &plan["ttl"], &plan["ephemerals_left_out"]),
        (&2.into(), &3.into(), &2.into())
    );
    let top = ["app", "box", "deep", "emptybox", "lease", "locks", "queue", "zookeeper"];
    assert_only(&client, &top).await;

    let data = async |path: &str| client.get(path).await.unwrap().data.map(|data| data.to_vec());
    assert_eq!(data("/app").await, Some(b"config: 4\n".to_vec()));
    assert_eq!(client.get("/app").await.unwrap().stat.version.0, 3);
    assert_eq!((data("/app/null").await, data("/app/empty").await), (None, Some(Vec::new())));
    assert_eq!(data("/app/binary").await, Some((0..=255).collect()));
    assert_eq!(data("/app/ümläut-中").await, Some("text 中".as_bytes().to_vec()));
    let acl = async |path: &str| {
        let acl = client.get_acl(path).await.unwrap().acl;
        acl.iter().map(|a| format!("{}:{}:{}", a.id.scheme, a.id.id, a.perms)).collect::<Vec<_>>()
    };
    let alice = "digest:alice:V55/p2T0OpjQ+low3NVAH4aLvm0=:31";
    assert_eq!(acl("/app/secret").await, [alice, "world:anyone:1"]);
    assert_eq!(acl("/app/net").await, ["ip:10.0.0.0/8:31", "ip:192.168.1.7:3"]);
    assert_eq!(names(&client, "/locks").await, ["busy"], "ephemeral znodes stay behind");
    let again = imported(&cluster, &["--keep-versions", "--from-snapshot", &golden()]).await;
    assert_eq!((&again["plan"]["existing"], &again["plan"]["counter_steps"]), (&41.into(), &0.into()));
    // What was deleted counts for the next number, as it does in the source.
    for (prefix, next) in
        [("/queue/job-", "/queue/job-0000000012"), ("/locks/busy/lock-", "/locks/busy/lock-0000000006")]
    {
        let made =
            client.create(prefix, None, CreateMode::PersistentSequential, Acl::open()).await.unwrap().path;
        assert_eq!(made, next);
    }

    let again = import(&cluster, &["--from-snapshot", &golden()]).await;
    assert_eq!(again.code, REFUSED);
    let conflict =
        "/locks/busy has 1 child znode outside of the source (and 1 more like it); nothing is overwritten";
    assert!(again.err.contains(conflict), "{}", again.err);
    assert_only(&client, &top).await;
    let verdict = imported(&cluster, &["--under", "/second", "--from-snapshot", &golden()]).await;
    assert_eq!(verdict["verified"]["znodes"], 42, "the znode that stands for the root is one more");
    assert_eq!(data("/second/app").await, Some(b"config: 4\n".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_and_times_to_live_are_more_than_names() {
    let settings =
        format!("{FAST}[client]\nsuper_digest = \"{SUPER_DIGEST}\"\n[znodes]\nsweep_interval_ms = 100\n");
    let cluster = Cluster::start(1, &settings).await;
    let client = super_client(&cluster).await;
    imported(&cluster, &["--from-snapshot", &golden()]).await;
    client.delete("/box/one", None).await.unwrap();
    let swept = || async { client.exists("/box").await.unwrap().is_none().then_some(()) };
    eventually("the container is swept when its last child has gone", SERVING, swept).await;
    assert!(client.exists("/lease/held").await.unwrap().is_some(), "its time is a day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_run_says_everything_and_changes_nothing() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let said = import(&cluster, &["--dry-run", "--from-snapshot", &golden()]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    for line in [
        "to import:   41 znodes with 529 B of data (2 containers, 3 with a time to live)\n",
        "left out:    2 ephemeral znodes, 3 below /zookeeper\n",
        "versions:    0 kept, 1 start at 0\n",
        "counters:    4 raised by 17 creates, 0 lower than in the source\n",
        "largest:          256 B  /app/binary\n",
    ] {
        assert!(said.out.contains(line), "{line} in {}", said.out);
    }
    client.create("/locks", Some("mine".into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let said = import(&cluster, &["--dry-run", "--from-snapshot", &golden()]).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.out.contains("conflict:    /locks exists and has other data\n"), "{}", said.out);
    let said = import(
        &cluster,
        &["--dry-run", "--counter-steps", "5", "--under", "/x", "--from-snapshot", &golden()],
    )
    .await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains("/x/queue: its next sequential number would collide"), "{}", said.err);
    assert_only(&client, &["locks", "zookeeper"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_may_not_create_below_an_acl_imports_nothing() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let said = end(start(&cluster, false, &["--from-snapshot", &golden()])).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains("/app/secret: its ACL does not let this import create"), "{}", said.err);
    assert_only(&client, &["zookeeper"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_snapshot_is_refused_before_anything_is_created() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let mut bytes = fs::read(golden()).unwrap();
    let text = b"config: 4";
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    bytes[at] ^= 1;
    let damaged = cluster.folder.join("snapshot.1");
    fs::write(&damaged, &bytes).unwrap();
    fs::write(cluster.folder.join("log.2"), b"").unwrap();
    let said = import(&cluster, &["--from-snapshot", damaged.to_str().unwrap()]).await;
    assert_eq!(said.code, 65, "{}", said.err);
    assert!(said.err.contains("the source is damaged: its checksum is"), "{}", said.err);
    assert!(said.err.contains("1 transaction logs with later changes beside snapshot.1"), "{}", said.err);
    assert_only(&client, &["zookeeper"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_import_is_whole_after_it_is_run_again() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let large = large_snapshot(&cluster.folder);
    let from = ["--from-snapshot", large.to_str().unwrap()];
    for (kind, code, reached) in
        [(Signal::INT, 130, "/big/d00000/n00"), (Signal::TERM, 143, "/big/d00200/n00")]
    {
        let child = start(&cluster, true, &from);
        created(&client, reached).await;
        signal(&child, kind);
        let said = end(child).await;
        assert_eq!(said.code, code, "{}", said.err);
        assert!(said.err.contains("of 40401 znodes exist: run the same command again"), "{}", said.err);
        assert!(
            said.err.contains("or remove them with rowlock delete -r for each of /big\n"),
            "{}",
            said.err
        );
        assert_only(&client, &["big", "zookeeper"]).await;
    }
    let verdict = imported(&cluster, &from).await;
    assert_eq!(verdict["verified"]["znodes"], LARGE);
    assert!(verdict["plan"]["existing"].as_u64().unwrap() > 20_000, "{verdict}");
    assert_large_is_whole(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_import_is_whole_after_it_is_run_again_unless_others_changed_it() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let large = large_snapshot(&cluster.folder);
    let from = ["--from-snapshot", large.to_str().unwrap()];
    let kill_at = async |path: &str| {
        let mut child = start(&cluster, true, &from);
        created(&client, path).await;
        child.kill().unwrap();
        child.wait().unwrap();
    };
    kill_at("/big/d00002/n00").await;
    client.create("/big/d00000/mine", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    client.set("/big/d00001/n00", None, None).await.unwrap();
    client.delete("/big/d00001/n01", None).await.unwrap();
    let before = names(&client, "/big").await;
    let said = import(&cluster, &from).await;
    assert_eq!(said.code, REFUSED, "{}", said.err);
    let conflict = "/big/d00000 has 1 child znode outside of the source (and 1 more like it); nothing is";
    assert!(said.err.contains(conflict), "{}", said.err);
    assert!(said.err.contains("conflict:    /big/d00001/n00 exists and has other data"), "{}", said.err);
    assert!(client.exists("/big/d00001/n01").await.unwrap().is_none(), "nothing is created");
    assert_eq!(names(&client, "/big").await, before);

    client.delete("/big/d00000/mine", None).await.unwrap();
    client.delete("/big/d00001/n00", None).await.unwrap();
    // Everything exists at the last kill, but not all counters are raised.
    kill_at("/big/d00300/n00").await;
    kill_at("/big/d00399/n99").await;
    let verdict = imported(&cluster, &from).await;
    assert_eq!(verdict["verified"]["znodes"], LARGE);
    assert_eq!(names(&client, "/zookeeper").await, ["config", "quota"]);
    for number in 2..400 {
        let stat = client.exists(&format!("/big/d{number:05}")).await.unwrap().unwrap();
        assert_eq!((stat.num_children, stat.cversion.0), (100, 2 * 103 - 100), "folder {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_imports_at_once_do_the_same_work_without_harm() {
    let cluster = cluster(3).await;
    let client = super_client(&cluster).await;
    let large = large_snapshot(&cluster.folder);
    let arguments = ["-o", "json", "--from-snapshot", large.to_str().unwrap()];
    let children = [(), ()].map(|()| start(&cluster, true, &arguments));
    for child in children {
        let said = end(child).await;
        assert_eq!(said.code, 0, "{}", said.err);
        let verdict: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(verdict["verified"]["znodes"], LARGE);
    }
    assert_large_is_whole(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_imports_at_once_raise_a_counter_once() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let queue = snapshot(&cluster.folder, &[("/queue".to_owned(), 20_000)]);
    let children = [(), ()].map(|()| start(&cluster, true, &["--from-snapshot", queue.to_str().unwrap()]));
    for child in children {
        let said = end(child).await;
        assert_eq!(said.code, 0, "{}", said.err);
    }
    client.sync("/").await.unwrap();
    assert_eq!(client.exists("/queue").await.unwrap().unwrap().cversion.0, 2 * 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_run_raises_the_data_versions() {
    let cluster = cluster(1).await;
    let client = super_client(&cluster).await;
    let version = async || client.exists("/app").await.unwrap().unwrap().version.0;
    imported(&cluster, &["--from-snapshot", &golden()]).await;
    assert_eq!(version().await, 0);
    for _ in 0..2 {
        imported(&cluster, &["--keep-versions", "--from-snapshot", &golden()]).await;
        assert_eq!(version().await, 3);
    }
    assert_eq!(client.get("/app").await.unwrap().bytes(), b"config: 4\n");
    client.set("/app", Some("config: 4\n".into()), None).await.unwrap();
    let said = import(&cluster, &["--keep-versions", "--from-snapshot", &golden()]).await;
    assert_eq!(said.code, REFUSED);
    assert!(said.err.contains("/app exists and has data version 4 instead of 3"), "{}", said.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_goes_on_when_the_leader_dies() {
    let mut cluster = cluster(3).await;
    let client = super_client(&cluster).await;
    let large = large_snapshot(&cluster.folder);
    let child = start(
        &cluster,
        true,
        &["--session-timeout", "20", "-o", "json", "--from-snapshot", large.to_str().unwrap()],
    );
    created(&client, "/big/d00000/n00").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let said = end(child).await;
    assert_eq!(said.code, 0, "{}", said.err);
    let verdict: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(verdict["verified"]["znodes"], LARGE);
    assert_large_is_whole(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_tree_is_copied_below_a_path() {
    let cluster = cluster(3).await;
    let client = super_client(&cluster).await;
    imported(&cluster, &["--keep-versions", "--from-snapshot", &golden()]).await;
    let app = format!("{}/app", cluster.endpoints());
    let auth = format!("{}:{}", SUPER.0, SUPER.1);
    let blind = import(&cluster, &["--from", &app, "--under", "/copy"]).await;
    assert!(
        blind.code == REFUSED && blind.err.contains("the source does not show all of it"),
        "{}",
        blind.err
    );
    let copy = ["--keep-versions", "--from", &app, "--from-auth", &auth, "--under", "/copy"];
    for existing in [0, 9] {
        let verdict = imported(&cluster, &copy).await;
        assert_eq!(verdict["plan"]["existing"], existing);
        assert_eq!(dump(&client, "/copy").await, dump(&client, "/app").await);
    }
    client.create("/app/new", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    imported(&cluster, &copy).await;
    assert_eq!(dump(&client, "/copy").await, dump(&client, "/app").await, "what is missing is created");
    client.set("/app/new", Some("changed".into()), None).await.unwrap();
    let said = import(&cluster, &copy).await;
    let conflict =
        "/copy/new exists and has other data (the source may have changed since an earlier import)";
    assert!(said.code == REFUSED && said.err.contains(conflict), "{}", said.err);
    client.delete("/app/new", None).await.unwrap();
    client.delete("/copy/new", None).await.unwrap();
    let next =
        client.create("/copy/t-", None, CreateMode::PersistentSequential, Acl::open()).await.unwrap().path;
    assert_eq!(next, "/copy/t-0000000008", "the next number is the one of the source");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_zookeeper_comes_over_and_goes_back() {
    let Ok(zookeeper) = std::env::var("ROWLOCK_TEST_ZK") else { return };
    let cluster = cluster(3).await;
    let client = super_client(&cluster).await;
    let source = Client::builder().endpoints(&zookeeper).auth(SUPER.0, SUPER.1).connect().await.unwrap();
    let top = format!("/rowlock-import-test-{}", std::process::id());
    for (existing, counter_steps) in [(0, 18), (42, 0)] {
        let there = ["--under", &top, "--endpoints", &zookeeper, "--from-snapshot", &golden()];
        let plan = imported(&cluster, &there).await["plan"].take();
        assert_eq!(plan["existing"], existing);
        assert_eq!(plan["counter_steps"], counter_steps);
    }
    let auth = format!("{}:{}", SUPER.0, SUPER.1);
    let there = format!("{zookeeper}{top}");
    imported(&cluster, &["--under", "/here", "--from", &there, "--from-auth", &auth]).await;
    assert_eq!(dump(&client, "/here").await, dump(&source, &top).await);
    let here = format!("{}/here", cluster.endpoints());
    let back = format!("{top}/back");
    imported(&cluster, &["--under", &back, "--endpoints", &zookeeper, "--from", &here, "--from-auth", &auth])
        .await;
    assert_eq!(dump(&source, &back).await, dump(&client, "/here").await);
    for path in dump(&source, &top).await.iter().rev().map(|(path, ..)| format!("{top}{path}")) {
        let gone = source.delete(&path, None).await;
        assert!(matches!(gone, Ok(()) | Err(Error::Rejected(ErrorCode::NoNode))), "{path}: {gone:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_after_an_import_are_larger_than_the_floor_also_after_a_restart() {
    let mut cluster = cluster(3).await;
    let file = golden();
    let from = ["--from-snapshot", &file];
    let shown = import(&cluster, &[&from[..], &["--dry-run"]].concat()).await;
    assert!(
        shown.out.contains("tokens:      start again") && shown.out.contains("--token-floor"),
        "{}",
        shown.out
    );
    let floor = ["--token-floor", "9000000000"];
    let refused = end(start(&cluster, false, &[&from[..], &floor].concat())).await;
    assert!(refused.code == REFUSED && refused.err.contains("needs a superuser"), "{}", refused.err);
    let client = super_client(&cluster).await;
    let before = client.mutex("before").lock().await.unwrap();
    assert!(before.token().0 < 9_000_000_000);
    client.create("/old", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let said = import(&cluster, &[&from[..], &floor, &["--under", "/old"]].concat()).await;
    assert!(said.code == 0 && said.err.contains("1 position of this cluster's queues"), "{}", said.err);
    assert!(said.err.contains("larger than 9000000000 from now on"), "{}", said.err);
    let after = client.mutex("after").lock().await.unwrap();
    assert!(after.token().0 > 9_000_000_000, "{}", after.token());
    cluster.kill_all();
    (1..=3).for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;
    let again = cluster.client().await.mutex("again").lock().await.unwrap();
    assert!(again.token() > after.token());
}
