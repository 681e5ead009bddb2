//! A slow request is told of in the log of the node that answers it, with the time that each stage took.

use std::collections::BTreeMap;
use std::fs;

use rowlock_client::CreateMode;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::support::cluster::{Cluster, FAST};
use crate::support::http::{get, request};
use crate::support::{eventually, secs};
use rowlock_frames::raw::RawClient;

/// Every request counts as slow.
const ALL: &str = "[log]\nslow_request = \"0s\"\n[audit]\nfile = \"audit.log\"\n";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const STAGES: [&str; 4] = ["queue_ms", "forward_ms", "quorum_ms", "apply_ms"];

/// The fields of the line that has all these.
fn fields(log: &str, kind: &str, having: &[&str]) -> Option<BTreeMap<String, String>> {
    let line = log.lines().find(|line| line.contains(kind) && having.iter().all(|one| line.contains(one)))?;
    let fields = line.split(' ').filter_map(|word| word.split_once('='));
    Some(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Asks again and again, since only one line a second is written, until the log of node `id` has it.
async fn told(it: &Cluster, id: u64, having: &[&str], ask: impl AsyncFn()) -> BTreeMap<String, String> {
    let found = async || {
        ask().await;
        fields(&it.log(id), "slow request", having)
    };
    eventually(&having.join(" "), secs(60), found).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_request_is_told_of_with_its_stages_also_where_a_follower_forwards_it() {
    let it = Cluster::start_with_api(3, &format!("{FAST}{ALL}")).await;
    let leader = it.leader().await;
    let follower = it.ids().into_iter().find(|id| *id != leader).unwrap();
    for node in [leader, follower] {
        let path = format!("/of-{node}");
        // The first request of a second is written, so all requests are of the kind that is looked for.
        let session = Mutex::new(RawClient::attach(it.endpoint(node), 20_000).await);
        let ask = async || {
            let data = "what is in a znode is nobody's business";
            let _ = session.lock().await.create(&path, data, CreateMode::Persistent).await;
        };
        let line = told(&it, node, &["op=\"create\"", &format!("path=\"{path}\"")], ask).await;
        for stage in STAGES.into_iter().chain(["took_ms", "outbox_ms"]) {
            assert!(line[stage].parse::<f64>().is_ok_and(|ms| ms >= 0.0), "{stage}: {line:?}");
        }
        let sum: f64 = STAGES.iter().map(|stage| line[*stage].parse::<f64>().unwrap()).sum();
        assert!(sum > 0.0 && line["entry"].parse::<u64>().unwrap() > 0, "{line:?}");
        assert!(line["client"].starts_with("127.0.0.1:") && line["session"].starts_with("0x"), "{line:?}");
        for stage in ["queue", "forward", "quorum", "apply", "outbox"] {
            let series = format!("rowlock_stage_seconds_count{{stage=\"{stage}\"}}");
            assert!(it.metric(node, &series).await > 0, "{series}");
        }
        assert!(it.metric(node, "rowlock_slow_requests_total").await > 0);
    }
    // The stages of the leader: by the entry, which all nodes name alike.
    let entry = async || fields(&it.log(leader), "slow log entry", &["commands=1 "]);
    let entry = eventually("a slow entry", secs(60), entry).await;
    assert!(entry["entry"].parse::<u64>().unwrap() > 0 && entry.contains_key("quorum_ms"), "{entry:?}");
    for id in it.ids() {
        assert!(!it.log(id).contains("nobody's business"), "data of znodes are no matter of a log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_of_a_request_by_http_is_named_in_the_log_and_in_the_audit_log() {
    let it = Cluster::start_with_api(1, &format!("{FAST}{ALL}")).await;
    let api = it.api(1);
    let ask = async || {
        let lines = format!("traceparent: {TRACE}\r\n");
        let (code, lease) =
            request(api, "POST /v1/leases", &lines, &json!({ "ttl_ms": 5_000 }).to_string()).await.unwrap();
        assert_eq!(code, 201, "{lease}");
    };
    told(&it, 1, &["op=\"openSession\"", &format!("traceparent={TRACE}")], ask).await;
    // A page of another site is refused before; a lock that is none is not. What operators do is recorded.
    let forced = "DELETE /v1/locks/nightly/holders/7";
    let _ = request(api, forced, &format!("traceparent: {TRACE}\r\n"), "").await.unwrap();
    let recorded = async || {
        let text = fs::read_to_string(it.data(1).join("audit.log")).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["traceparent"] == TRACE)
    };
    let line = eventually("a record", secs(60), recorded).await;
    assert_eq!(line["event"], "admin", "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_of_the_leader_counts_once_by_what_had_ended_the_one_before() {
    let mut it = Cluster::start(3, FAST).await;
    let first = it.leader().await;
    let count = async |it: &Cluster, cause: &str| {
        let mut sum = 0;
        for id in it.ids() {
            let text = get(it.http(id), "/metrics").await.unwrap_or_default();
            let name = format!("rowlock_leaderships_total{{cause=\"{cause}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            sum += line.map_or(0, |count| count.parse::<u64>().unwrap());
        }
        sum
    };
    assert!(count(&it, "start").await >= 1);
    it.restart(first).await;
    let second = it.leader().await;
    assert_ne!(first, second);
    assert_eq!(count(&it, "handed-over").await, 1, "a node that stops in order hands over");
    it.kill(second);
    it.leader().await;
    assert_eq!(count(&it, "disconnected").await, 1, "a node that is killed hangs up");
}
