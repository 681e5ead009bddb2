//! `/v1/status`: state of one node, for people, scripts and the black-box tests.
//!
//! Elections: leaders seen by this node since its start, for the console: after an incident an operator needs
//! the times of leader changes.
//!
//! Leader's view of the members, for the status page of a follower.
//!
//! Invariant: no request waits for the leader. While status requests arrive, the follower queries the leader
//! at most every half second; a response is valid for three seconds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use parking_lot::Mutex;
use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::status::{NotServing, Status};
use rowlock_env::duty::Duty;
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Role;
use rowlock_metrics::{Metrics, Silence, View};
use rowlock_proto::{ClusterId, NodeId, Zxid};
use rowlock_state::Frozen;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::HttpContext;
use crate::config::{NodeConfig, NodeEntry};
use crate::node::context::NodeContext;

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
        "forgotten": context.metrics.forgotten.get() == 1,
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

/// Returns the durability of locks, the commands acknowledged before their flush with the age of the oldest,
/// held and queued positions, and since the start the grants and the cumulative counts of waits per bound and
/// in total.
fn locks(metrics: &Metrics) -> Value {
    let View { cumulative, count, .. } = metrics.lock_wait_seconds.view();
    let (bounds, mut waits): (Vec<u64>, Vec<u64>) = cumulative.into_iter().unzip();
    waits.push(count);
    json!({
        "acknowledge": if metrics.locks_written.get() == 1 { "written" } else { "flushed" },
        "unflushed": metrics.wal_unflushed_commands.get(),
        "unflushed_ms": u64::try_from(metrics.wal_unflushed_seconds.get().as_millis()).unwrap_or(u64::MAX),
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

/// Bound of the list; the oldest election is dropped.
const KEPT: usize = 32;

/// Change of the leader, including its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Election {
    term: u64,
    leader: Option<u64>,
    /// Time of the report of this leader, or of the last contact with a quorum, in milliseconds since 1970.
    at_ms: i64,
}

/// Recent elections, newest first.
#[derive(Debug, Default)]
pub struct Elections(Mutex<VecDeque<Election>>);

impl Elections {
    /// Starts the recording task. A simulated world has no console and records nothing.
    pub fn start(tasks: &TaskGroup, status: Receiver<Status>) -> Arc<Elections> {
        let elections = Arc::new(Elections::default());
        if !rowlock_env::world::is_simulated() {
            let here = elections.clone();
            tasks.spawn_until_shutdown("elections", async move { here.follow(status).await });
        }
        elections
    }

    /// Records leaders from the status until its sender is dropped.
    async fn follow(&self, mut status: Receiver<Status>) {
        loop {
            let seen = {
                let now = status.borrow();
                let leader = now.leader.filter(|_| now.leaderless_since_ms.is_none()).map(|node| node.0);
                Election {
                    term: now.term,
                    leader,
                    at_ms: now.leaderless_since_ms.unwrap_or_else(time::wall_ms),
                }
            };
            self.record(seen);
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn record(&self, mut seen: Election) {
        let mut all = self.0.lock();
        // The last contact may precede the report of the previous leader.
        seen.at_ms = all.front().map_or(seen.at_ms, |last| last.at_ms.max(seen.at_ms));
        debug_assert!(all.front().is_none_or(|last| last.term <= seen.term), "terms do not go back");
        // Terms of failed elections are not recorded.
        let is_news = match all.front() {
            Some(last) => last.leader != seen.leader || seen.leader.is_some() && last.term != seen.term,
            None => seen.leader.is_some(),
        };
        if is_news {
            all.push_front(seen);
            all.truncate(KEPT);
        }
        assert!(all.len() <= KEPT, "no more than {KEPT} elections are kept");
    }

    pub(super) fn list(&self) -> serde_json::Value {
        let all: Vec<Election> = self.0.lock().iter().copied().collect();
        serde_json::json!(all)
    }
}

const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(3);

/// View of one node, empty by default.
#[derive(Debug, Default)]
pub struct LeaderView {
    wanted: Notify,
    latest: Mutex<Option<(Instant, Status)>>,
}

/// Duty that queries the leader when a status request has arrived.
struct LeaderQuery {
    view: Arc<LeaderView>,
    node: Arc<NodeContext>,
}

impl Duty for LeaderQuery {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        self.view.wanted.notified().await;
        let leader = self.node.status.borrow().leader.filter(|leader| *leader != self.node.me);
        let Some(leader) = leader else { return Ok(Some(time::now())) };
        let asked = time::now();
        let answer = self.node.peers.call(leader, Lane::Control, &Request::Status, asked + PATIENCE).await;
        if let Ok(Response::Status(status)) = answer
            && status.role == Role::Leader
        {
            *self.view.latest.lock() = Some((asked, status));
        }
        Ok(Some(time::now() + PAUSE))
    }
}

impl LeaderView {
    /// Starts the duty that queries the leader on demand. A simulated world has no status page and starts no
    /// duty.
    pub fn start(tasks: &TaskGroup, node: &Arc<NodeContext>) -> Arc<LeaderView> {
        let view = Arc::new(LeaderView::default());
        if !rowlock_env::world::is_simulated() {
            tasks.spawn_duty("leader-view", LeaderQuery { view: view.clone(), node: node.clone() });
        }
        view
    }

    /// Returns the latest valid status of the leader of `term` and requests an update.
    fn latest(&self, term: u64) -> Option<Status> {
        self.wanted.notify_one();
        let latest = self.latest.lock();
        let fresh = latest.as_ref().filter(|(at, status)| at.elapsed() < FRESH && status.term == term);
        fresh.map(|(_, status)| status.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_change_is_recorded_once_and_the_list_is_bounded() {
        let elections = Elections::default();
        let record = |term, leader| elections.record(Election { term, leader, at_ms: 5 });
        for (term, leader) in
            [(0, None), (1, Some(2)), (1, Some(2)), (2, None), (3, None), (4, Some(3)), (5, Some(3))]
        {
            record(term, leader);
        }
        let seen: Vec<_> = elections.0.lock().iter().map(|one| (one.term, one.leader)).collect();
        assert_eq!(seen, [(5, Some(3)), (4, Some(3)), (2, None), (1, Some(2))]);
        elections.record(Election { term: 6, leader: None, at_ms: 4 });
        assert_eq!(elections.0.lock()[0].at_ms, 5, "a time does not go back");
        for term in 6..100 {
            record(term, Some(1));
        }
        assert_eq!(elections.list().as_array().unwrap().len(), KEPT);
        assert_eq!(elections.list()[0], serde_json::json!({ "term": 99, "leader": 1, "at_ms": 5 }));
    }
}
