//! `rowlock top`: rates and hot locks of a cluster under load, as a program and as a person see them.

use std::io::{BufRead as _, BufReader};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish, rowlock};
use crate::support::load::Cycling;
use crate::support::{eventually, secs};

async fn said(cluster: &Cluster, arguments: &[&str]) -> Said {
    let mut command = rowlock(&cluster.folder, arguments);
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_of_a_busy_cluster_and_its_hot_lock_are_shown_and_a_dead_node_is_named() {
    let mut cluster = Cluster::start(3, FAST).await;
    let load = Cycling::start(vec![cluster.client().await, cluster.client().await], 1);
    let mut holder = start(&cluster.folder, &["lock", "hot"]);
    holder.first_line().await;
    let waiter = start(&cluster.folder, &["lock", "hot"]);
    let busy = async || {
        let once = said(&cluster, &["top", "--once", "-o", "json"]).await;
        assert_eq!((once.code, once.err.as_str()), (0, ""), "{}", once.out);
        let look: Value = serde_json::from_str(&once.out).unwrap();
        let nodes = look["nodes"].as_array().unwrap().clone();
        assert!(nodes.len() == 3 && nodes.iter().all(|node| node["serving"] == true), "{look}");
        let rate: f64 = nodes.iter().filter_map(|node| node["requests_per_second"].as_f64()).sum();
        let flushed = nodes.iter().any(|node| node["flush_p99_ms"].as_f64().is_some_and(|ms| ms > 0.0));
        let granted =
            nodes.iter().any(|node| node["grants_per_second"].as_f64().is_some_and(|rate| rate > 0.0));
        let locks = look["locks"].as_array().unwrap();
        let waits = locks.iter().any(|lock| lock["lock"] == "/locks/hot" && lock["waiters"] == 1);
        (rate > 0.0 && flushed && granted && waits).then_some(())
    };
    eventually("rates and a hot lock", secs(60), busy).await;
    load.end(&cluster).await;
    let table = said(&cluster, &["top", "--once"]).await;
    assert!(table.out.starts_with("node  role") && table.out.contains("/locks/hot"), "{}", table.out);
    assert!(!table.out.contains('\x1b'), "nothing but text without a terminal");
    waiter.signal(Signal::TERM);
    waiter.code().await;
    holder.end_with_signal().await;
    cluster.kill(3);
    let dead = async || {
        let table = said(&cluster, &["top", "--once"]).await;
        (table.code == 69 && table.out.contains("no answer: ")).then_some(table.out)
    };
    let table = eventually("a dead node", secs(60), dead).await;
    assert_eq!(table.matches("no answer").count(), 1, "the others are shown: {table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_follow_each_other_until_a_signal_ends_them_and_wrong_options_are_explained() {
    let cluster = Cluster::start(1, FAST).await;
    let looks = rowlock(&cluster.folder, &["top", "-o", "json", "--interval", "0.2"]).spawn();
    let ended = tokio::task::spawn_blocking(move || {
        let mut looks = looks.unwrap();
        let mut lines = BufReader::new(looks.stdout.take().unwrap()).lines();
        for _ in 0..3 {
            let look: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            assert_eq!(look["nodes"][0]["role"], "leader", "{look}");
        }
        kill_process(Pid::from_child(&looks), Signal::TERM).unwrap();
        looks.wait().unwrap()
    });
    assert_eq!(ended.await.unwrap().code(), Some(0));
    let without = said(&cluster, &["top", "--once", "--endpoints", cluster.endpoint(1)]).await;
    assert!(without.code == 64 && without.err.contains("--http"), "{}", without.err);
}
