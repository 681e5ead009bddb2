//! Liveness, readiness and version, for orchestrators and load balancers.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rowlock_consensus::status::{NotServing, Status};
use rowlock_metrics::Metrics;
use rowlock_proto::NodeId;
use serde_json::{Value, json};

use super::HttpContext;
use super::problem::Problem;

/// Reports a running process. The result is independent of Raft: restarting a node does not restore a quorum.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Reports whether clients may connect to this node. `?verbose` lists the checks.
pub(super) async fn readyz(State(context): State<HttpContext>, RawQuery(query): RawQuery) -> Response {
    let status = context.status.borrow().clone();
    let mut checks = checks(&status, &context.metrics);
    checks.push(memory(&context.metrics));
    checks.extend(disk_checks(&context.metrics));
    checks.extend(tokens(&context.metrics));
    let verbose =
        query.as_deref().is_some_and(|q| q.split('&').any(|p| p == "verbose" || p.starts_with("verbose=")));
    match not_ready(&checks) {
        Some(reason) if verbose => unavailable(reason).with("checks", checks_json(&checks)).into_response(),
        Some(reason) => unavailable(reason).into_response(),
        None if verbose => {
            let lines = checks.iter().map(|check| format!("[+] {}: {}\n", check.name, check.found));
            (lines.collect::<String>() + "ready\n").into_response()
        }
        None => "ready\n".into_response(),
    }
}

/// Reports readiness as JSON, with the leader.
pub(super) async fn health(State(context): State<HttpContext>) -> Response {
    let status = context.status.borrow().clone();
    let mut checks = checks(&status, &context.metrics);
    checks.extend(disk_checks(&context.metrics));
    if let Some(reason) = not_ready(&checks) {
        return unavailable(reason).with("node", status.node.0).with("term", status.term).into_response();
    }
    let leader = status.leader.map(|node| node.0);
    Json(json!({
        "status": "serving",
        "node": status.node.0,
        "role": status.role.as_str(),
        "term": status.term,
        "leader": leader,
    }))
    .into_response()
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "name": "rowlock", "version": env!("CARGO_PKG_VERSION") }))
}

struct Check {
    name: &'static str,
    passed: bool,
    found: String,
}

/// Returns the conditions, causes before consequences.
fn checks(status: &Status, metrics: &Metrics) -> Vec<Check> {
    let (has_leader, leader) = match (status.leader, status.leaderless_since_ms) {
        (Some(node), None) => (true, format!("node {node} leads")),
        // The vote for a leader outlasts its quorum.
        (Some(node), Some(_)) => (false, format!("no leader with a quorum (the last one was node {node})")),
        (None, _) => (false, "no leader is known".to_owned()),
    };
    let serving = match status.not_serving {
        None if status.serving => "clients are served".to_owned(),
        Some(NotServing::CatchesUp) => format!(
            "{} (applied {} of {} committed log entries)",
            NotServing::CatchesUp.text(),
            status.applied_index,
            status.committed_index
        ),
        why => why.unwrap_or_default().text().to_owned(),
    };
    let mut checks = vec![
        Check { name: "leader", passed: has_leader, found: leader },
        Check { name: "serving", passed: status.serving, found: serving },
    ];
    let grace = metrics.restore_grace_seconds.get();
    if grace > 0 {
        let found =
            format!("the cluster was restored or lost power: sessions are opened in {grace} s, at most");
        checks.push(Check { name: "sessions", passed: false, found });
    }
    if metrics.forgotten.get() == 1 {
        let found = "this node lost unflushed entries about locks with the power: it votes for no usual leader \
                     before a leader has sent it all entries";
        checks.push(Check { name: "remembers", passed: true, found: found.to_owned() });
    }
    if !status.waits_for.is_empty() {
        let nodes: Vec<String> = status.waits_for.iter().map(NodeId::to_string).collect();
        let found = format!(
            "this node has an empty data folder and waits for node {}: start all stopped nodes (docs/operations.md \
             if they are lost)",
            nodes.join(", ")
        );
        checks.insert(0, Check { name: "admitted", passed: false, found });
    }
    checks
}

/// Checks the node's memory. A node with full memory still serves.
fn memory(metrics: &Metrics) -> Check {
    let held: u64 = metrics.memory_bytes.get().iter().map(|(_, bytes)| bytes).sum();
    let limit = metrics.memory_limit_bytes.get();
    let found = match (limit, metrics.memory_full.get()) {
        (0, _) => format!("{} MiB are held, without a limit", held >> 20),
        (limit, 0) => format!("{} of {} MiB are held", held >> 20, limit >> 20),
        (limit, _) => {
            format!(
                "{} of {} MiB are held: new sessions and growing writes are refused",
                held >> 20,
                limit >> 20
            )
        }
    };
    Check { name: "memory", passed: true, found }
}

/// Reports a missing or bad token file. The node still serves, with the previous tokens.
fn tokens(metrics: &Metrics) -> Option<Check> {
    let found = "the token file is missing or bad: all previous tokens stay valid; restore the file, or write an \
                 empty one to revoke all";
    (metrics.token_file_unusable.get() == 1).then(|| Check {
        name: "tokens",
        passed: true,
        found: found.to_owned(),
    })
}

/// Checks this node's disk and the commits of a majority.
fn disk_checks(metrics: &Metrics) -> Vec<Check> {
    let stalled =
        "no write was committed for ten seconds: the disks of a majority are unresponsive".to_owned();
    let stalled = Check { name: "commits", passed: false, found: stalled };
    let mut checks = vec![disk(metrics)];
    checks.extend((metrics.commits_stalled.get() == 1).then_some(stalled));
    checks
}

/// Checks the disk. A node without free space still serves; a node with an unresponsive disk is not ready.
fn disk(metrics: &Metrics) -> Check {
    let free = metrics.disk_free_bytes.get() >> 20;
    let hangs = metrics.disk_hangs.get() == 1;
    let found = if hangs {
        "the disk does not answer: a write of the log has not ended for ten seconds".to_owned()
    } else if metrics.wal_waits_for_room.get() == 1 {
        format!("{free} MiB are free: the log waits for room, and nothing is acknowledged")
    } else if metrics.disk_short.get() == 1 {
        format!(
            "{free} MiB are free, less than limits.min_free_bytes: while too few voters have more, growing writes are refused"
        )
    } else if metrics.disk_low.get() == 1 {
        format!("{free} MiB are free, less than limits.warn_free_bytes")
    } else {
        format!("{free} MiB are free")
    };
    Check { name: "disk", passed: !hangs, found }
}

fn not_ready(checks: &[Check]) -> Option<String> {
    let failed: Vec<_> =
        checks.iter().filter(|check| !check.passed).map(|check| check.found.as_str()).collect();
    (!failed.is_empty()).then(|| failed.join("; "))
}

fn unavailable(reason: String) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn checks_json(checks: &[Check]) -> Vec<Value> {
    checks.iter().map(|c| json!({ "name": c.name, "passed": c.passed, "found": c.found })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_without_a_quorum_is_no_leader() {
        let mut status = Status { leader: Some(NodeId(1)), ..Status::default() };
        let leader = |status: &Status| {
            let checks = checks(status, &Metrics::default());
            checks
                .into_iter()
                .find(|check| check.name == "leader")
                .map(|check| (check.passed, check.found))
                .unwrap()
        };
        assert_eq!(leader(&status), (true, "node 1 leads".to_owned()));
        status.leaderless_since_ms = Some(1);
        assert_eq!(leader(&status), (false, "no leader with a quorum (the last one was node 1)".to_owned()));
    }
}
