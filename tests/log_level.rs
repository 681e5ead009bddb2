//! What nodes write into their logs is changed while they run: by an operator, for a while, and by SIGHUP.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use rowlock_proto::ErrorCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::cluster::{Cluster, FAST, turn};
use crate::support::command::{Said, finish, rowlock};
use crate::support::{eventually, one_node, secs};

const SETTINGS: &str =
    "[client]\nsuper_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n[audit]\nfile = \"audit.log\"\n";
/// What a node writes at the level debug alone.
const ATTACHED: &str = "session attached";

async fn said(cluster: &Cluster, arguments: &[&str], auth: &str) -> Said {
    let mut command = rowlock(&cluster.folder, arguments);
    command.env("ROWLOCK_ENDPOINTS", cluster.endpoints()).env("ROWLOCK_AUTH", auth);
    tokio::task::spawn_blocking(move || finish(command.spawn().unwrap())).await.unwrap()
}

async fn operator(cluster: &Cluster, arguments: &[&str]) -> Said {
    said(cluster, arguments, "digest:super:test").await
}

/// How often a node's log says that a session was attached, once one more was.
async fn attached(cluster: &Cluster, id: u64) -> usize {
    let client = cluster.client_of(cluster.endpoint(id)).await;
    let session = client.session_id().to_string();
    client.close().await.unwrap();
    // A line that is written has been written before the client was answered.
    let log = cluster.log(id);
    log.lines().filter(|line| line.contains(ATTACHED) && line.contains(&session)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debug_lines_appear_when_an_operator_wants_them_and_go_when_their_time_is_over() {
    let cluster = Cluster::start(3, &format!("{FAST}{SETTINGS}")).await;
    let shown = operator(&cluster, &["log-level"]).await;
    assert_eq!(shown.out, "node 1 logs info\nnode 2 logs info\nnode 3 logs info\n", "{}", shown.err);
    assert_eq!(attached(&cluster, 2).await, 0);

    let set = operator(&cluster, &["log-level", "debug", "--for", "8s", "--node", "2", "-o", "json"]).await;
    let document: Value = serde_json::from_str(&set.out).unwrap_or_else(|e| panic!("{e}: {}", set.err));
    let node = &document["nodes"][0];
    assert!(node["node"] == 2 && node["filter"] == "debug", "{document}");
    assert!((1..=8_000).contains(&node["ends_in_ms"].as_u64().unwrap()), "{document}");
    assert!(attached(&cluster, 2).await >= 1);
    assert_eq!(attached(&cluster, 1).await, 0, "the others log as before");
    let over = async || cluster.log(2).contains("the operator's filter of the log has ended").then_some(());
    eventually("the time is over", secs(60), over).await;
    assert_eq!(attached(&cluster, 2).await, 0);

    let all = operator(&cluster, &["log-level", "warn, rowlock_coordinator::node::zk=debug"]).await;
    assert_eq!((all.code, all.out.lines().count()), (0, 3), "{}", all.err);
    for id in 1..=3 {
        assert!(attached(&cluster, id).await >= 1);
    }
    let reset = operator(&cluster, &["log-level", "--reset"]).await;
    assert_eq!(reset.out, "node 1 logs info\nnode 2 logs info\nnode 3 logs info\n", "{}", reset.err);
    assert_eq!(attached(&cluster, 3).await, 0);
    let audit: String =
        (1..=3).map(|id| fs::read_to_string(cluster.data(id).join("audit.log")).unwrap()).collect();
    let line = audit.lines().find(|line| line.contains("/v1/log-level?node=2&filter=debug&for_ms=8000"));
    let line: Value = serde_json::from_str(line.expect("it is recorded")).unwrap();
    assert!(line["event"] == "admin" && line["result"] == "ok", "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_means_nothing_and_strangers_are_refused_in_words() {
    let mut cluster = Cluster::start(3, &format!("{FAST}{SETTINGS}")).await;
    let wrong = operator(&cluster, &["log-level", "inof"]).await;
    assert!(wrong.code == 64 && wrong.err.contains("\"inof\" is no level"), "{}", wrong.err);
    let wrong = operator(&cluster, &["log-level", "debug", "--for", "8d"]).await;
    assert!(wrong.code == 64 && wrong.err.contains("at most 7d"), "{}", wrong.err);
    let wrong = operator(&cluster, &["log-level", "debug", "--node", "9"]).await;
    assert!(wrong.code == 1 && wrong.err.contains("node 9 is no member"), "{}", wrong.err);
    let stranger = said(&cluster, &["log-level", "debug"], "digest:alice:test").await;
    assert!(stranger.code == 1 && stranger.err.contains("only superusers"), "{}", stranger.err);
    // The node's own check, for those who ask without this program.
    let client = cluster.client().await;
    client.add_auth("digest", "super:test").await.unwrap();
    let refused = client.operate("/v1/log-level?node=2&filter=inof").await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::BadArguments));
    let told = async || cluster.log(2).contains("is no level").then_some(());
    eventually("a line of the refusal", secs(20), told).await;
    client.close().await.unwrap();
    cluster.kill(3);
    let others = operator(&cluster, &["log-level"]).await;
    assert!(others.code == 75 && others.err.contains("node 3 did not answer"), "{}", others.err);
    assert_eq!(others.out.lines().count(), 2, "{}", others.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_has_the_filter_read_again_and_a_wrong_file_changes_nothing() {
    let _turn = turn().await;
    let folder = tempfile::tempdir().unwrap();
    one_node(folder.path(), "log = \"info\"\n");
    let log = folder.path().join("log");
    let mut command = rowlock(folder.path(), &["serve", "--node", "1", "--data", "data"]);
    let mut node = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    // The node's own look at its role is at this level.
    let line = "DEBUG rowlock_coordinator";
    let says = async |what: &str| {
        let found = async || fs::read_to_string(&log).unwrap().contains(what).then_some(());
        eventually(what, secs(60), found).await;
    };
    says("role=\"leader\"").await;
    assert!(!fs::read_to_string(&log).unwrap().contains(line));
    let hang_up = || kill_process(Pid::from_child(&node), Signal::HUP).unwrap();
    rewrite(folder.path(), "log = \"info\"", "log = \"inof\"");
    hang_up();
    says("still using the previous one").await;
    rewrite(folder.path(), "log = \"inof\"", "log = \"debug\"");
    hang_up();
    let asked = async || {
        let _ = tokio::net::TcpStream::connect(client_address(folder.path())).await;
        fs::read_to_string(&log).unwrap().contains(line).then_some(())
    };
    eventually("a debug line", secs(60), asked).await;
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    assert!(node.wait().unwrap().success());
}

fn rewrite(folder: &Path, old: &str, new: &str) {
    let file = folder.join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(old));
    fs::write(&file, text.replace(old, new)).unwrap();
}

fn client_address(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("cluster.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("client = \"")).unwrap();
    line.trim_end_matches('"').to_owned()
}
