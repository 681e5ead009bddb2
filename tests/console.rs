//! The console, in a real browser, against real processes. It is skipped where Chromium or Python is
//! missing, too old or broken.

use std::path::Path;

use serde_json::json;

use crate::support::cluster::{Cluster, FAST};
use crate::support::command::{Said, finish_within, run};
use crate::support::http::request;
use crate::support::tools::{self, Tool};
use crate::support::{eventually, secs};

/// A Chromium that draws a page here, and the Python of the scripts.
fn chromium() -> Option<String> {
    const SKIPPED: &str = "the console";
    // It may print its version and still find no sandbox, no library or no memory.
    const PROBE: &str = "\"$0\" --version && \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                         --dump-dom about:blank | grep -q '<html'";
    tools::python(SKIPPED)?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let works = |name: &&str| {
        let probe = &["-c", PROBE, *name];
        let tool = Tool { name, programs: &[Path::new("/bin/sh")], probe, least: &[100], skipped: SKIPPED };
        tool.find().is_some()
    };
    names.into_iter().find(works).map(str::to_owned)
}

/// What a script of tests/ui has said.
async fn drive(script: &str, arguments: &[String]) -> Said {
    let mut python = tools::command("python3");
    python
        .arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("tests/ui").join(script))
        .args(arguments);
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
    let mut others = it.ids().into_iter().filter(|id| *id != leader);
    let (other, third) = (others.next().unwrap(), others.next().unwrap());
    let mut arguments = vec![chromium];
    for id in [other, leader, third] {
        let [api, http] = [it.api(id), it.http(id)].map(|address| format!("http://{address}"));
        arguments.extend([api, http, it.pid(id).to_string()]);
    }
    let said = drive("console.py", &arguments).await;
    assert!(said.out.ends_with("21 facts\n"), "{}", said.out);
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
