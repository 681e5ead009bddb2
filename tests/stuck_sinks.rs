//! Programs that read what nodes log stop reading. The nodes go on.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowlock_client::{Acl, CreateMode};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, secs};

/// A node whose log is a pipe. Many lines, so that pipe and queue are full soon.
fn serve(it: &Cluster, id: u64) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowlock"));
    command.args(["serve", "--node", &id.to_string(), "--log", "trace,openraft=trace", "--config"]);
    command
        .arg(it.config())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ended_within(process: &mut Child, limit: Duration) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = process.kill();
    let _ = process.wait();
    panic!("it has not ended within {limit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_serve_and_stop_while_the_reader_of_their_logs_hangs() {
    let mut it = Cluster::start(3, FAST).await;
    it.kill_all();
    let mut nodes: Vec<(u64, Child)> = it.ids().into_iter().map(|id| (id, serve(&it, id))).collect();
    for (id, _) in &nodes {
        it.wait_until_serves(*id).await;
    }
    let client = it.client().await;
    client.create("/n", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let dropped = async || {
        client.set("/n", Some("x".into()), None).await.unwrap();
        let mut least = u64::MAX;
        for (id, _) in &nodes {
            least = least.min(it.metric(*id, "rowlock_log_lines_dropped_total").await);
        }
        (least > 0).then_some(least)
    };
    eventually("all nodes drop lines", secs(120), dropped).await;
    // With the queues full.
    let term = it.status(1).await.unwrap()["raft"]["term"].clone();
    for n in 0..50 {
        client.set("/n", Some(format!("{n}").into()), None).await.unwrap();
    }
    assert_eq!(it.status(1).await.unwrap()["raft"]["term"], term, "the leader stayed");
    client.close().await.unwrap();
    // One reader goes on, and is told what it has missed.
    let text = Arc::new(Mutex::new(Vec::new()));
    let (mut stderr, told) = (nodes[0].1.stderr.take().unwrap(), text.clone());
    let reader = std::thread::spawn(move || {
        let mut some = [0; 65_536];
        while let Ok(count @ 1..) = stderr.read(&mut some) {
            told.lock().unwrap().extend_from_slice(&some[..count]);
        }
    });
    let is_told = async || {
        let text = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
        text.contains("log lines were dropped").then_some(())
    };
    eventually("the count of the dropped lines", secs(30), is_told).await;
    for (_, process) in &nodes {
        kill_process(Pid::from_raw(process.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    }
    for (_, process) in &mut nodes {
        assert_eq!(ended_within(process, secs(30)), Some(0));
    }
    reader.join().unwrap();
    let text = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
    assert!(text.ends_with("stopped\n"), "the last lines were written: {}", &text[text.len() - 300..]);
}
