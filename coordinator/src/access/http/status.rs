//! `/v1/status`: state of one node, for people, scripts and the black-box tests.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use rowlock_consensus::status::{NotServing, Status};
use rowlock_metrics::{Metrics, Role, Silence, View};
use rowlock_proto::{ClusterId, NodeId, Zxid};
use rowlock_state::Frozen;
use serde::Serialize;
use serde_json::{Value, json};

use super::HttpContext;
use crate::config::{NodeConfig, NodeEntry};

/// Counts of the replica and the client listener at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateView {
    /// Log index of the state.
    pub applied_index: u64,
    pub zxid: Zxid,
    /// Digest of the state in hex: equal on all nodes with the same `applied_index`.
    pub digest: String,
    /// Id of the cluster. `None`: the cluster is being founded.
    pub cluster: Option<ClusterId>,
    /// Remaining milliseconds without new sessions after a restore; 0: sessions are accepted.
    pub grace_ms: u32,
    pub sessions: u64,
    pub znodes: u64,
    pub ephemerals: u64,
    /// Watches of this node's connections.
    pub watches: u64,
    pub connections: u64,
}

/// Configured HTTP addresses of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpAddresses {
    pub node: u64,
    pub http: String,
    pub api: Option<String>,
}

impl HttpAddresses {
    /// Returns the addresses of all configured nodes.
    pub(crate) fn of(config: &NodeConfig) -> Arc<[HttpAddresses]> {
        let of = |node: &NodeEntry| HttpAddresses {
            node: node.id.0,
            http: node.http_addr.clone(),
            api: node.any_api_addr(&config.http).map(str::to_owned),
        };
        config.nodes.iter().map(of).collect()
    }
}

/// Access to the replicated state for the status page.
pub trait StatusSource: Send + Sync + 'static {
    /// Returns index, zxid, digest and counts, read under one read lock of the replica and thus consistent
    /// with each other. Runs on a runtime thread and must not block for longer than this lock.
    fn state(&self) -> StateView;

    /// Returns the current replicated state. Must not block for longer than the replica's read lock.
    fn freeze(&self) -> Frozen;
}

pub(super) async fn status(State(context): State<HttpContext>) -> Json<Value> {
    // The Raft status is published at intervals and may lag behind `state`. To compare nodes, use `state`
    // alone.
    let raft = context.status.borrow().clone();
    let state = context.source.state();
    let ids = |nodes: &[rowlock_proto::NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
    let leader = raft.leader.map(|node| node.0);
    let (replicated, silent) = members(&context, &raft);
    Json(json!({
        "node": raft.node.0,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": u64::try_from(context.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "serving": raft.serving,
        "disk_hangs": context.metrics.disk_hangs.get() == 1,
        "not_serving": raft.not_serving.map(NotServing::text),
        "restore_grace_s": context.metrics.restore_grace_seconds.get(),
        "commits_stalled": context.metrics.commits_stalled.get() == 1,
        "raft": {
            "role": raft.role.as_str(),
            "term": raft.term,
            "leader": leader,
            "leaderless_since_ms": raft.leaderless_since_ms,
            "last_log_index": raft.last_log_index,
            "committed_index": raft.committed_index,
            "applied_index": raft.applied_index,
            "snapshot_index": raft.snapshot_index,
            "purged_index": raft.purged_index,
            "voters": ids(&raft.voters),
            "learners": ids(&raft.learners),
            "replicated": replicated,
            "waits_for": ids(&raft.waits_for),
            "silent": silent,
        },
        "nodes": *context.nodes,
        "elections": context.elections.list(),
        "silent_leaders": context.metrics.leaderships_total.after_silence(),
        "certificates": certificates(&context.metrics),
        "latency": latency(&context.metrics),
        "locks": locks(&context.metrics),
        "state": {
            "applied_index": state.applied_index,
            "zxid": state.zxid.0,
            "digest": state.digest,
            "cluster_id": state.cluster.map(|id| id.to_string()),
            "grace_ms": state.grace_ms,
            "sessions": state.sessions,
            "znodes": state.znodes,
            "ephemerals": state.ephemerals,
        },
        "watches": state.watches,
        "connections": state.connections,
    }))
}

/// Returns the stored log index of each other member, and its time without a response to the leader, both
/// according to the leader; the latter is `null` before the leader's first report.
fn members(context: &HttpContext, here: &Status) -> (Value, Value) {
    let (replicated, silent) = if here.role == Role::Leader {
        let silences = context.metrics.member_silent_seconds.get();
        (here.replicated.clone(), Some(Silence::known(&silences)))
    } else {
        let told = here.leader.and_then(|_| context.leader_view.latest(here.term));
        told.map_or_else(Default::default, |told| (told.replicated, Some(told.silent)))
    };
    let list = |all: &[(NodeId, u64)], name: &str| {
        Value::from_iter(all.iter().map(|(node, number)| json!({ "node": node.0, name: number })))
    };
    (list(&replicated, "index"), silent.map_or(Value::Null, |all: Vec<_>| list(&all, "for_ms")))
}

/// Returns held and queued positions, and since the start the grants and the cumulative counts of waits per
/// bound and in total.
fn locks(metrics: &Metrics) -> Value {
    let View { cumulative, count, .. } = metrics.lock_wait_seconds.view();
    let (bounds, mut waits): (Vec<u64>, Vec<u64>) = cumulative.into_iter().unzip();
    waits.push(count);
    json!({
        "held": metrics.locks_held.get(),
        "waiting": metrics.lock_waiters.get(),
        "grants": metrics.lock_grants_total.get(),
        "wait_bounds_ms": bounds,
        "waits": waits,
    })
}

/// Returns the node's certificates and their remaining validity; negative: expired.
fn certificates(metrics: &Metrics) -> Value {
    let all = metrics.tls_cert_expiry_seconds.get();
    all.map(|(listener, left)| json!({ "listener": listener, "expires_in_s": left })).collect()
}

/// Returns latencies since the start of the node in milliseconds; `null`: no measurement.
fn latency(metrics: &Metrics) -> Value {
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    json!({
        "flush_p50_ms": ms(metrics.wal_fsync_seconds.quantile(0.5)),
        "flush_p99_ms": ms(metrics.wal_fsync_seconds.quantile(0.99)),
        "commit_p99_ms": ms(metrics.commit_seconds.quantile(0.99)),
    })
}
