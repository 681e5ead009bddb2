//! `rowlock elect`: leading while a command runs, following the leader.

use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, http, ports, secs, wire};

const REFUSED: i32 = 1;
const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
const LOST: i32 = 75;
const DEADLOCK: i32 = 79;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_is_told_every_leader_and_the_end_of_each() {
    let cluster = Cluster::start(1, FAST).await;
    let mut listener = start(&cluster.folder, &["elect", "--listen", "-o", "json", "e"]);
    let mut told = BufReader::new(listener.child.stdout.take().unwrap()).lines();
    let (send, mut news) = tokio::sync::mpsc::unbounded_channel();
    let reader = std::thread::spawn(move || {
        while let Some(Ok(line)) = told.next() {
            send.send(serde_json::from_str::<Value>(&line).unwrap()).unwrap();
        }
    });
    assert_eq!(news.recv().await.unwrap(), Value::Null);
    let mut first = start(&cluster.folder, &["elect", "e", "host-1"]);
    let said = first.first_line().await;
    let leader = news.recv().await.unwrap();
    assert_eq!(leader["value"], "host-1");
    assert_eq!(said, format!("{} {}", leader["key"].as_str().unwrap(), leader["token"]));

    let script = "echo $ROWLOCK_LOCK_TOKEN > leads; while [ ! -e finish ]; do sleep 0.02; done; exit 5";
    let second = start(&cluster.folder, &["elect", "e", "host-2", "--", "sh", "-c", script]);
    // Another one who does not want to wait for long.
    let third =
        start(&cluster.folder, &["elect", "-w", "0.2", "-E", "4", "e", "host-3", "--", "true"]).end().await;
    assert_eq!((third.code, third.out.as_str()), (4, ""));
    first.end_with_signal().await;
    let token: u64 = second.wrote("leads").await.trim().parse().unwrap();
    assert!(token > leader["token"].as_u64().unwrap());
    while news.recv().await.unwrap()["value"] != "host-2" {}
    std::fs::write(cluster.folder.join("finish"), "").unwrap();
    assert_eq!(second.end().await.code, 5);
    assert_eq!(news.recv().await.unwrap(), Value::Null);
    listener.end_with_signal().await;
    reader.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_waits_for_what_is_held_for_it_is_refused_rather_than_stuck() {
    let cluster = Cluster::start(1, FAST).await;
    let binary = env!("CARGO_BIN_EXE_rowlock");
    // A command that leads wants the lead, or the lock under which it runs; -w, so that it is not stuck for
    // ever.
    for arguments in [
        &["elect", "e", "outer", "--", binary, "elect", "-w", "20", "e", "inner", "--", "true"][..],
        &["lock", "a", binary, "elect", "e", "v", "--", binary, "lock", "-w", "20", "a", "true"],
        &["elect", "e", "v", "--", binary, "lock", "a", binary, "elect", "-w", "20", "e", "w", "--", "true"],
    ] {
        let said = start(&cluster.folder, arguments).end().await;
        assert_eq!(said.code, DEADLOCK, "{arguments:?}: {}", said.err);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidate_without_a_value_is_a_mistake_and_a_taken_lead_a_refusal() {
    let cluster = Cluster::start(1, FAST).await;
    for arguments in [&["elect", "e"][..], &["elect", "e", "--", "true"], &["elect", "-l", "e", "v"]] {
        assert_eq!(start(&cluster.folder, arguments).end().await.code, USAGE, "{arguments:?}");
    }
    let mut leader = start(&cluster.folder, &["elect", "e", "host-1"]);
    leader.first_line().await;
    let said = start(&cluster.folder, &["elect", "-w", "0.1", "e", "host-2"]).end().await;
    assert_eq!(said.code, REFUSED, "{}", said.err);
    leader.end_with_signal().await;
}

/// What a candidate's `--http` answers: whether it leads, and the leader.
async fn sign_says(addr: &str) -> Option<(bool, Value)> {
    let (code, document) = http::request(addr, "GET /any/path", "", "").await?;
    let leads = document["leads"].as_bool().unwrap();
    assert_eq!(code, if leads { 200 } else { 503 }, "{document}");
    Some((leads, document["leader"].clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_by_http_hears_200_from_the_leader_alone_and_its_name_from_the_others() {
    let cluster = Cluster::start(1, FAST).await;
    let (at_first, at_second) = (ports::address(), ports::address());
    let port_of_second = format!(":{}", at_second.rsplit_once(':').unwrap().1);
    // Alone in the election, and a loopback address though only a port was said.
    let mut first = start(&cluster.folder, &["elect", "--ttl", "2", "--http", &at_first, "e", "host-1"]);
    let said = first.first_line().await;
    let (leads, leader) = sign_says(&at_first).await.unwrap();
    assert!(leads);
    assert_eq!(said, format!("{} {}", leader["key"].as_str().unwrap(), leader["token"]));
    let mut second = start(&cluster.folder, &["elect", "--http", &port_of_second, "e", "host-2"]);
    let names_the_first = || async {
        let (leads, named) = sign_says(&at_second).await?;
        assert!(!leads);
        (named == leader).then_some(())
    };
    eventually("the second names the first", secs(10), names_the_first).await;

    // A leader that stands still is asked, loses the lead, and goes on.
    first.signal(Signal::STOP);
    let asked = tokio::spawn({
        let at_first = at_first.clone();
        async move { sign_says(&at_first).await }
    });
    let leads = || async { sign_says(&at_second).await.filter(|(leads, _)| *leads) };
    let (_, leader) = eventually("the second leads", secs(20), leads).await;
    assert_eq!(leader["value"], "host-2");
    assert_eq!(second.first_line().await, format!("{} {}", leader["key"].as_str().unwrap(), leader["token"]));
    first.signal(Signal::CONT);
    // It may also end before it answers.
    assert!(!asked.await.unwrap().is_some_and(|(leads, _)| leads));
    assert_eq!(first.code().await, Some(LOST));
    second.end_with_signal().await;
    assert_eq!(sign_says(&at_second).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidate_that_no_server_hears_is_no_leader_and_one_whose_port_is_taken_does_not_stand() {
    let folder = tempfile::tempdir().unwrap();
    let (nowhere, at) = (ports::address(), ports::address());
    let flags = ["elect", "--endpoints", &nowhere, "--connect-timeout", "60", "--http", &at, "e", "host-1"];
    let candidate = start(folder.path(), &flags);
    let answered = || sign_says(&at);
    assert_eq!(eventually("it answers", secs(10), answered).await, (false, Value::Null));
    let said = start(folder.path(), &flags).end().await;
    assert_eq!(said.code, UNAVAILABLE, "{}", said.err);
    assert!(said.err.contains("--http") && said.err.contains(&at), "{}", said.err);
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.code().await, Some(128 + Signal::TERM.as_raw()));
    for arguments in [&["elect", "--http", "4040", "e", "v"][..], &["elect", "--http", ":0", "-l", "e"]] {
        assert_eq!(start(folder.path(), arguments).end().await.code, USAGE, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_keep_the_server_waiting_give_way_to_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (nowhere, at) = (ports::address(), ports::address());
    let flags = ["elect", "--endpoints", &nowhere, "--connect-timeout", "60", "--http", &at, "e", "host-1"];
    let candidate = start(folder.path(), &flags);
    eventually("it answers", secs(10), || sign_says(&at)).await;
    // Silent ones, half a head, a head whose body never comes, answered ones that stay.
    for said in ["", "GET / HTTP/1.1\r\nHost: x", "GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"] {
        let mut held = Vec::new();
        for _ in 0..80 {
            let mut stream = tokio::net::TcpStream::connect(&at).await.unwrap();
            stream.write_all(said.as_bytes()).await.unwrap();
            held.push(stream);
        }
        for _ in 0..8 {
            let begun = std::time::Instant::now();
            assert_eq!(sign_says(&at).await, Some((false, Value::Null)), "{said:?}");
            assert!(begun.elapsed() < secs(1), "{said:?}: {:?}", begun.elapsed());
        }
        let mut newest = held.pop().unwrap();
        if !said.ends_with("\r\n\r\n") {
            assert!(wire::is_closed(&mut newest, secs(4)).await, "{said:?}: a head has two seconds");
        }
    }
    candidate.signal(Signal::TERM);
    candidate.code().await;
}
