//! stops-with-cause, durable: on disks without room the cluster gives back and keeps its sessions. It
//! acknowledges nothing that it cannot store, and goes on by itself when there is room.
//!
//! The data folders are small file systems in memory, which only root may mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Error, ErrorCode, Version};

use crate::support::cluster::{Cluster, FAST, SERVING};
use crate::support::{command, eventually, http, secs};

const MIB: u64 = 1 << 20;
/// A segment of the log has 64 MiB; a node that has purged its log keeps two of them for later.
const DISK_MIB: u64 = 400;
const LIMITS: &str =
    "[limits]\nwarn_free_bytes = 134217728\nmin_free_bytes = 50331648\nreserve_bytes = 8388608\n";
/// Megabytes that do not fit into one segment of the log.
const FILLS_A_SEGMENT: usize = 75;
/// The shortest session that [`FAST`] allows.
const SESSION: Duration = secs(2);

/// The file system of a node's data folder.
struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// `None`: we may not.
    fn mount(folder: PathBuf) -> Option<Disk> {
        fs::create_dir_all(&folder).unwrap();
        let size = format!("size={DISK_MIB}m,mode=700");
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", &size, "rowlock-test"]).arg(&folder).output();
        done.is_ok_and(|done| done.status.success()).then_some(Disk { folder })
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.folder).unwrap();
        found.f_bavail * found.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    /// Leaves this much, as far as there was more. The node may write meanwhile.
    fn fill(&self, leave: u64) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.ballast()).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        for step in [16 * MIB, MIB, 4 << 10] {
            while self.free() >= leave + step {
                let len = file.metadata().unwrap().len();
                if rustix::fs::fallocate(&file, flags, len, step).is_err() {
                    break;
                }
            }
        }
    }

    fn free_up(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also under a node that still runs.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}

/// Three file systems in memory are filled by each test: not by two at once, which took minutes on a loaded
/// machine.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Three nodes on disks of their own. `None`, with a word, where file systems may not be mounted.
async fn start() -> Option<(Vec<Disk>, Cluster)> {
    let mut disks = Vec::new();
    let settings = format!("{FAST}{LIMITS}");
    let prepare = |folder: &Path| {
        disks.extend((1..=3).map_while(|id| Disk::mount(folder.join(format!("data/node-{id}")))));
    };
    let cluster = Cluster::start_with_files(3, &settings, prepare).await;
    if disks.len() < 3 {
        println!("skipped: only root may mount a file system for the nodes' data");
        return None;
    }
    Some((disks, cluster))
}

async fn short_client(cluster: &Cluster) -> Client {
    let builder = Client::builder().endpoints(&cluster.endpoints()).session_timeout(SESSION);
    builder.connect_timeout(secs(30)).connect().await.unwrap()
}

async fn wait_for_metric(cluster: &Cluster, id: u64, name: &str, value: u64) {
    let is_so = || async move { (cluster.metric(id, name).await == value).then_some(()) };
    eventually(&format!("{name} of node {id} is {value}"), SERVING, is_so).await;
}

async fn create(client: &Client, path: &str, data: &'static [u8]) -> Result<(), Error> {
    client.create(path, Some(data.into()), CreateMode::Persistent, Acl::open()).await.map(drop)
}

fn is_no_room<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Rejected(ErrorCode::QuotaExceeded)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_full_disks_releases_and_heartbeats_pass_and_what_grows_is_refused_until_there_is_room() {
    let _alone = ALONE.lock().await;
    let Some((disks, cluster)) = start().await else { return };
    let (client, short) = (cluster.client().await, short_client(&cluster).await);
    create(&client, "/kept", b"four").await.unwrap();
    create(&client, "/spare", b"").await.unwrap();
    let held = client.mutex("full").lock().await.unwrap();
    let lasting = short.mutex("lasting").lock().await.unwrap();

    // One of three, and the cluster serves on; its leader is one that has room.
    let first = cluster.leader().await;
    disks[first as usize - 1].fill(20 * MIB);
    wait_for_metric(&cluster, first, "rowlock_disk_short", 1).await;
    create(&client, "/one-is-full", b"").await.unwrap();
    let handed_over = || async { (cluster.leader().await != first).then_some(()) };
    eventually("another node leads", SERVING, handed_over).await;
    create(&client, "/another-leads", b"").await.unwrap();

    for (id, disk) in (1..).zip(&disks) {
        disk.fill(20 * MIB);
        wait_for_metric(&cluster, id, "rowlock_disk_short", 1).await;
    }
    let refused = || async { is_no_room(create(&client, "/more", b"").await).then_some(()) };
    eventually("what grows is refused", SERVING, refused).await;
    let _ = client.delete("/more", None).await;
    assert!(is_no_room(client.set("/kept", Some(b"longer".as_slice().into()), None).await));
    assert!(is_no_room(client.mutex("another").try_lock().await));
    let told = http::get(cluster.http(1), "/readyz?verbose").await.unwrap();
    assert!(told.contains("less than limits.min_free_bytes"), "{told}");
    let endpoints = cluster.endpoints();
    let said = command::run(&cluster.folder, &["create", "/more", "--endpoints", &endpoints]);
    assert!(said.code != 0 && said.err.contains("disk"), "{} {}", said.code, said.err);

    held.release().await.unwrap();
    client.set("/kept", Some(b"same".as_slice().into()), None).await.unwrap();
    client.delete("/spare", None).await.unwrap();
    // Far longer than its timeout, in which only its heartbeats keep it.
    let expired = cluster.metric_of_all("rowlock_sessions_expired_total").await;
    tokio::time::sleep(2 * SESSION).await;
    assert!(lasting.is_held(), "the session of a holder has ended");
    assert_eq!(cluster.metric_of_all("rowlock_sessions_expired_total").await, expired);
    lasting.release().await.unwrap();

    disks.iter().for_each(Disk::free_up);
    let accepted = || async { create(&client, "/room-again", b"").await.ok() };
    eventually("what grows passes again", SERVING, accepted).await;
    client.mutex("another").lock().await.unwrap().release().await.unwrap();
    assert_eq!(client.get("/kept").await.unwrap().data.as_deref(), Some(b"same".as_slice()));
    assert!(cluster.metric_of_all("rowlock_growth_refused_for_room_total").await >= 3);
    cluster.wait_for_equal_digests().await;
}

/// Overwrites a large znode; nothing of that grows, but the log does. Gives its last version.
async fn churn(client: &Client, megabytes: usize) -> Version {
    let mut version = Version(0);
    for round in 0..megabytes {
        let data = vec![u8::try_from(round % 251).unwrap(); 1_000_000];
        version = client.set("/large", Some(data.into()), None).await.unwrap().version;
    }
    version
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_without_any_room_wait_for_it_and_lose_nothing_and_no_node_needs_a_restart() {
    let _alone = ALONE.lock().await;
    let Some((disks, mut cluster)) = start().await else { return };
    let client = cluster.client().await;
    create(&client, "/large", b"").await.unwrap();
    churn(&client, 1).await;
    let held = client.mutex("held").lock().await.unwrap();
    let pids: Vec<u32> = (1..=3).map(|id| cluster.pid(id)).collect();
    disks.iter().for_each(|disk| disk.fill(0));
    let churning = tokio::spawn({
        let client = client.clone();
        async move { churn(&client, FILLS_A_SEGMENT).await }
    });
    for id in 1..=3 {
        wait_for_metric(&cluster, id, "rowlock_wal_waits_for_room", 1).await;
    }
    assert!(!churning.is_finished(), "what no majority can store was acknowledged");

    // Two have room again, and go on without the third one.
    let full = cluster.leader().await;
    let others = disks.iter().zip(1..).filter(|(_, id)| *id != full);
    others.for_each(|(disk, _)| disk.free_up());
    let last = churning.await.unwrap();
    assert!(held.is_held(), "a session was ended");
    held.release().await.unwrap();
    assert_eq!(cluster.metric(full, "rowlock_wal_waits_for_room").await, 1);
    let unready = || async { cluster.unready(full).await };
    eventually("a node that falls behind serves nobody", SERVING, unready).await;

    disks[full as usize - 1].free_up();
    wait_for_metric(&cluster, full, "rowlock_wal_waits_for_room", 0).await;
    cluster.wait_until_serves(full).await;
    cluster.wait_for_equal_digests().await;
    assert_eq!((1..=3).map(|id| cluster.pid(id)).collect::<Vec<_>>(), pids);

    cluster.kill_all();
    (1..=3).for_each(|id| cluster.start_node(id));
    cluster.wait_until_serving().await;
    let client = cluster.client().await;
    assert_eq!(client.exists("/large").await.unwrap().unwrap().version, last);
}

/// A supervisor starts a node again after 74, and not after 73, with which such a start ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_on_a_full_disk_ends_with_74_and_starts_when_there_is_room() {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start(1, &format!("{FAST}{LIMITS}")).await;
    cluster.stop(1).await;
    fs::rename(cluster.data(1), cluster.folder.join("former")).unwrap();
    let Some(disk) = Disk::mount(cluster.data(1)) else {
        println!("skipped: only root may mount a file system for the node's data");
        return;
    };
    disk.fill(0);
    cluster.start_node(1);
    assert_eq!(cluster.exit_code(1).await, Some(74), "{}", cluster.log(1));
    assert!(cluster.log(1).contains("The disk is full"), "{}", cluster.log(1));
    disk.free_up();
    cluster.start_node(1);
    cluster.wait_until_serves(1).await;
}
