//! `rowlock elect --http`: the address at which a candidate answers whether it leads.

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::cli_under_lock::start;
use crate::support::cluster::{Cluster, FAST};
use crate::support::{eventually, http, ports, secs, wire};

const UNAVAILABLE: i32 = 69;
const LOST: i32 = 75;

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
    assert_eq!(said, format!("{} {}", leader["key"].as_str().unwrap(), leader["token"].as_str().unwrap()));
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
    assert_eq!(
        second.first_line().await,
        format!("{} {}", leader["key"].as_str().unwrap(), leader["token"].as_str().unwrap())
    );
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
