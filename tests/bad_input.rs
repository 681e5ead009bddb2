//! bounded: invalid frames and misbehaving clients.

use std::fs;
use std::time::Duration;

use rowlock_client::{Acl, CreateMode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::cluster::Cluster;
use crate::support::{eventually, secs, wire};

const CLOSE_LIMIT: Duration = secs(30);
const IDLE_MAX: usize = 10_000;
/// Descriptors that are not for idle connections: listeners, logs, the runtime, the other tests of this
/// process.
const DESCRIPTORS_KEPT: usize = 500;
const MEMORY_MAX_KIB: u64 = 1 << 20;
const MIB: usize = 1 << 20;
/// `ruok` is not answered by default.
const RUOK: &str = "[client]\nwords = [\"ruok\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_survives_bad_input_and_serves_on() {
    let mut cluster = Cluster::start(1, RUOK).await;
    let addr = cluster.endpoint(1).to_owned();
    let client = cluster.client().await;

    // Bytes of every kind, before and after a handshake.
    let mut state = 1u32;
    for round in 0..40 {
        let mut noise = vec![0u8; 4096];
        for byte in &mut noise {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let mut stream =
            if round % 2 == 0 { wire::dial(&addr).await } else { wire::attach(&addr, 4_000).await };
        // The node may close before it has read all.
        let _ = stream.write_all(&noise).await;
        let _ = stream.shutdown().await;
        assert!(wire::is_closed(&mut stream, CLOSE_LIMIT).await, "noise {round} is refused");
    }
    // Frames that announce more than there may be, or less than nothing.
    for length in [i32::MAX, 0x10_0000 + 1, -1, i32::MIN] {
        for attached in [false, true] {
            let mut stream =
                if attached { wire::attach(&addr, 4_000).await } else { wire::dial(&addr).await };
            stream.write_all(&length.to_be_bytes()).await.unwrap();
            assert!(wire::is_closed(&mut stream, CLOSE_LIMIT).await, "a frame of {length} bytes is refused");
        }
    }
    assert_alive(&mut cluster, &client, "/after-noise").await;

    half_handshakes(&addr).await;
    assert_alive(&mut cluster, &client, "/after-halves").await;
    never_reading(&cluster, &client).await;
    assert_alive(&mut cluster, &client, "/after-deaf").await;
    let log = cluster.log(1);
    assert!(log.contains("bytes, 1024 allowed"), "the cause of a refusal is logged:\n{log}");
    assert!(!log.contains("panicked"), "{log}");
}

/// A client that says half of what it has to say, and goes; and one that stays and is closed.
async fn half_handshakes(addr: &str) {
    let whole = wire::handshake(4_000);
    for half in 1..whole.len() {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&whole[..half]).await.unwrap();
    }
    let mut stays = TcpStream::connect(addr).await.unwrap();
    stays.write_all(&whole[..20]).await.unwrap();
    assert!(wire::is_closed(&mut stays, secs(60)).await, "a handshake is not waited for without end");
}

/// Asks for a gigabyte of answers and reads none: the node closes the connection or stops reading from it,
/// and keeps only a bounded part.
async fn never_reading(cluster: &Cluster, client: &rowlock_client::Client) {
    let data = vec![7u8; MIB - 10_000];
    client.create("/big", Some(data.into()), CreateMode::Persistent, Acl::open()).await.unwrap();
    let mut stream = wire::attach(cluster.endpoint(1), 40_000).await;
    let asking = async {
        for xid in 1..=1_000 {
            if stream.write_all(&wire::get_data(xid, "/big")).await.is_err() {
                break;
            }
        }
    };
    // A node that stops reading lets us wait here; that is one of the right answers.
    let _ = tokio::time::timeout(secs(5), asking).await;
    let memory = memory_kib(cluster.pid(1));
    assert!(memory < MEMORY_MAX_KIB, "the node uses {memory} KiB for a client that never reads");
    client.delete("/big", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_holds_ten_thousand_idle_connections_and_serves_on() {
    let mut cluster = Cluster::start(1, RUOK).await;
    let addr = cluster.endpoint(1).to_owned();
    let client = cluster.client().await;
    let room = descriptors().saturating_sub(DESCRIPTORS_KEPT).min(IDLE_MAX);
    let mut idle = Vec::with_capacity(room);
    for n in 0..room {
        idle.push(
            TcpStream::connect(&addr).await.unwrap_or_else(|e| panic!("connection {n} of {room}: {e}")),
        );
    }
    assert_alive(&mut cluster, &client, "/beside-the-idle").await;
    let memory = memory_kib(cluster.pid(1));
    assert!(memory < MEMORY_MAX_KIB, "the node uses {memory} KiB for {room} idle connections");
    drop(idle);
    // They are all gone from its books.
    let few = || async { (cluster.status(1).await?["connections"].as_u64()? < 10).then_some(()) };
    eventually("idle connections are forgotten", secs(60), few).await;
    assert_alive(&mut cluster, &client, "/after-the-idle").await;
}

async fn assert_alive(cluster: &mut Cluster, client: &rowlock_client::Client, path: &str) {
    assert!(cluster.is_running(1), "the node has ended:\n{}", cluster.log(1));
    assert_eq!(wire::word(cluster.endpoint(1), "ruok").await, "imok");
    client.create(path, None, CreateMode::Persistent, Acl::open()).await.unwrap();
}

/// How many descriptors this process, and so its children, may have.
fn descriptors() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
