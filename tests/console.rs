//! The console, in a real browser, against real processes. It is left out with a word where Chromium or
//! Python is missing.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish_within, run};
use crate::support::http::request;
use crate::support::{eventually, secs};

fn chromium() -> Option<&'static str> {
    let runs = |name: &str| {
        let mut probe = Command::new(name);
        probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    if !runs("python3") {
        println!("python3 is not installed: the console is not tried");
        return None;
    }
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| runs(name));
    if found.is_none() {
        println!("chromium is not installed: the console is not tried");
    }
    found
}

/// What a script of tests/ui has said.
async fn drive(script: &str, arguments: &[String]) -> Said {
    let mut python = Command::new("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui").join(script)).args(arguments);
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A quarter of it where nothing else runs and axe-core is not there.
    let limit = secs(300);
    let drive = move || finish_within(python.spawn().unwrap(), limit);
    let said = tokio::task::spawn_blocking(drive).await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    println!("{}", said.out);
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_a_line_as_it_changes_and_survives_hostile_names_and_the_leaders_death() {
    let Some(chromium) = chromium() else { return };
    let it = Cluster::start_with_api(3, FAST).await;
    let leader = it.leader().await;
    let other = it.ids().into_iter().find(|id| *id != leader).unwrap();
    let mut arguments = vec![chromium.to_owned()];
    for id in [other, leader] {
        arguments.extend([format!("http://{}", it.api(id)), format!("http://{}", it.http(id))]);
    }
    arguments.push(it.pid(leader).to_string());
    let said = drive("console.py", &arguments).await;
    assert!(said.out.ends_with("14 facts\n"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_asks_for_a_token_and_ends_a_session_for_an_operator() {
    let Some(chromium) = chromium() else { return };
    let mut it = Cluster::start_with_api(1, FAST).await;
    it.stop(1).await;
    it.change_settings(&format!("{FAST}[http]\ntoken_file = \"tokens\"\n"));
    let made = run(&it.folder, &["token", "new", "boss", "--role", "operator", "--file", "tokens"]);
    assert_eq!(made.code, 0, "{}", made.err);
    it.start_node(1);
    let token = made.out.trim().to_owned();
    let proof = format!("Authorization: Bearer {token}\r\n");
    let serves = async || {
        let answer = request(it.api(1), "GET /v1/status", &proof, "").await;
        answer.filter(|(code, status)| *code == 200 && status["serving"] == json!(true)).map(drop)
    };
    eventually("the node serves", secs(60), serves).await;
    let said = drive("closed.py", &[chromium.to_owned(), format!("http://{}", it.api(1)), token]).await;
    assert!(said.out.ends_with("2 facts\n"), "{}", said.out);
}
