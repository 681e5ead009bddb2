//! The console, in a real browser, against a cluster of real processes. It is left out with a word where
//! Chromium or Python is missing.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::finish;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_a_line_as_it_changes_and_survives_hostile_names_and_the_leaders_death() {
    let Some(chromium) = chromium() else { return };
    let it = Cluster::start_with_api(3, FAST).await;
    let leader = it.leader().await;
    let other = it.ids().into_iter().find(|id| *id != leader).unwrap();
    let mut python = Command::new("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui/console.py")).arg(chromium);
    for id in [other, leader] {
        python.args([format!("http://{}", it.api(id)), format!("http://{}", it.http(id))]);
    }
    python.arg(it.pid(leader).to_string());
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = tokio::task::spawn_blocking(move || finish(python.spawn().unwrap())).await.unwrap();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.ends_with("13 facts\n"), "{}", said.out);
}
