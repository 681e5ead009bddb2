//! bounded: the largest legal requests of every kind, sent by several connections one after another, without
//! undoing any. They cost the cluster neither its leader nor its readiness, nor more memory than a few times
//! their bytes. It recovers soon after all nodes were killed. docs/threat-model.md says how to repeat this at
//! full size.

use std::time::{Duration, Instant};

use rowlock_frames::{At, Kind, LOCAL, LOGGED, bytes};
use rowlock_proto::lock::QueuePosition;
use rowlock_proto::response::OpResult;
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, Request, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::cluster::Cluster;
use crate::support::{http, secs};
use rowlock_frames::raw::{RawClient, SESSION_MS};

/// In the environment: how many connections send each kind, one after another, at nodes with the usual
/// timeouts. Without it one does, a quarter of what fills a frame, at nodes that may be a debug build: those
/// are 20 times slower.
const CONNECTIONS: &str = "ROWLOCK_TEST_FRAMES";
/// How many times the sent bytes a node may have in memory at most.
const TIMES: u64 = 4;
/// And this many more: the memory of a node without clients, its log in memory and a snapshot that is being
/// written.
const BESIDE_BYTES: u64 = 256 << 20;
/// After the death of all nodes they are ready again: what a debug build on a busy machine may take.
const BACK: Duration = secs(120);
/// Requests on their way before the first of them is answered.
const WINDOW: usize = 800;

/// A debug build takes a second for what may take 50 ms.
const PATIENT: &str =
    "[raft]\nheartbeat_ms = 300\nelection_timeout_min_ms = 5000\nelection_timeout_max_ms = 8000\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn largest_frames_of_every_kind_change_no_leader_and_fill_no_memory() {
    let connections = std::env::var(CONNECTIONS).ok().map(|text| text.parse::<usize>().unwrap());
    let part = if connections.is_some() { 1 } else { 4 };
    let settings = if connections.is_some() { "" } else { PATIENT };
    let mut cluster = Cluster::start(3, settings).await;
    let (leader, term) = leadership(&cluster).await;
    let poll = Poll::start(&cluster, connections.is_none());
    let begun = Instant::now();
    let (mut sent, mut frames, mut open) = (0, 0, Vec::new());
    for number in 0..connections.unwrap_or(1) {
        let kinds = LOGGED.iter().copied().flatten().chain(LOCAL);
        for (at, kind) in kinds.enumerate() {
            let endpoint = cluster.endpoint(1 + (number + at) as u64 % 3);
            let root = format!("/{:04}", number * 100 + at);
            let started = Instant::now();
            let mut session = Session::open(endpoint, kind).await;
            session.send_largest(kind, &root, part).await;
            (sent, frames) = (sent + session.sent, frames + session.frames);
            println!("{:>6} ms  {}", started.elapsed().as_millis(), kind.name);
            open.push(session);
        }
    }
    let took = begun.elapsed();
    let (polls, longest, refusals) = poll.stop().await;
    assert_eq!(leadership(&cluster).await, (leader, term), "the leader has changed");
    assert!(refusals.is_empty(), "readyz: {refusals:?}");
    println!(
        "{frames} frames, {sent} bytes in {took:?}; {polls} answers of readyz, the longest took {longest:?}"
    );
    for id in cluster.ids() {
        let peak = cluster.peak_bytes(id);
        println!(
            "node {id}: at most {} MiB, {:.1} times what was sent",
            peak >> 20,
            peak as f64 / sent as f64
        );
        println!("  apply took {} s at most", longest_apply(&cluster, id).await);
        assert!(peak <= TIMES * sent + BESIDE_BYTES, "node {id}: {peak} bytes after {sent}");
    }
    cluster.kill_all();
    let begun = Instant::now();
    cluster.ids().into_iter().for_each(|id| cluster.start_node(id));
    let ids = cluster.ids();
    while !all_ready(&cluster, &ids).await {
        assert!(begun.elapsed() < BACK, "not ready again {BACK:?} after all were killed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("all nodes are ready {:?} after all were killed", begun.elapsed());
    cluster.wait_for_equal_digests().await;
}

async fn leadership(cluster: &Cluster) -> (u64, u64) {
    let leader = cluster.leader().await;
    let status = cluster.status(leader).await.expect("it has just answered");
    (leader, status["raft"]["term"].as_u64().unwrap())
}

async fn all_ready(cluster: &Cluster, ids: &[u64]) -> bool {
    for id in ids {
        if http::get(cluster.http(*id), "/readyz").await.is_none() {
            return false;
        }
    }
    true
}

async fn longest_apply(cluster: &Cluster, id: u64) -> String {
    let text = http::get(cluster.http(id), "/metrics").await.expect("a node answers");
    let line = text.lines().find_map(|line| line.strip_prefix("rowlock_apply_longest_seconds "));
    line.expect("there is such a metric").to_owned()
}

/// Asks every node again and again whether it is ready.
struct Poll {
    stop: watch::Sender<bool>,
    /// How many answers, the longest that one took, and what was no 200.
    tasks: JoinSet<(usize, Duration, Vec<String>)>,
}

impl Poll {
    /// `patient`: only a node that says that it is not ready is none; a debug build may say nothing for a
    /// while.
    fn start(cluster: &Cluster, patient: bool) -> Poll {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for id in cluster.ids() {
            let (address, stopped) = (cluster.http(id).to_owned(), stopped.clone());
            tasks.spawn(async move {
                let (mut polls, mut longest, mut refusals) = (0, Duration::ZERO, Vec::new());
                while !*stopped.borrow() {
                    let begun = Instant::now();
                    let is_ready = http::get(&address, "/readyz").await.is_some();
                    if !is_ready && (!patient || http::get_refused(&address, "/readyz").await.is_some()) {
                        refusals.push(format!("node {id}, after {:?}", begun.elapsed()));
                    }
                    (polls, longest) = (polls + 1, longest.max(begun.elapsed()));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                (polls, longest, refusals)
            });
        }
        Poll { stop, tasks }
    }

    async fn stop(mut self) -> (usize, Duration, Vec<String>) {
        self.stop.send(true).unwrap();
        let (mut polls, mut longest, mut refusals) = (0, Duration::ZERO, Vec::new());
        while let Some(one) = self.tasks.join_next().await {
            let one = one.unwrap();
            (polls, longest) = (polls + one.0, longest.max(one.1));
            refusals.extend(one.2);
        }
        assert!(polls > 0);
        (polls, longest, refusals)
    }
}

struct Session {
    raw: RawClient,
    sent: u64,
    frames: usize,
}

impl Session {
    async fn open(endpoint: &str, kind: &Kind) -> Session {
        let mut raw = RawClient::attach(endpoint, SESSION_MS).await;
        for user in kind.identities.users() {
            raw.authenticate(&format!("{user}:password")).await;
        }
        Session { raw, sent: 0, frames: 0 }
    }

    /// The one that fills a frame, or a part of it; and if the whole is refused, about the largest that is
    /// not.
    async fn send_largest(&mut self, kind: &Kind, root: &str, part: usize) {
        let token = self.prepare(kind, root).await;
        let at = At { root, token };
        let items = if kind.refused.is_some() { kind.full(&at) } else { kind.full(&at) / part };
        let result = self.ask((kind.request)(&at, items)).await;
        let is_local = LOCAL.iter().any(|local| local.name == kind.name);
        match kind.refused {
            None => self.judge(kind, result),
            Some(code) => {
                assert_eq!(result, Err(code), "{}", kind.name);
                // A real connection has its address among its identities.
                let admitted = kind.admitted * 9 / 10;
                if !is_local {
                    let result = self.ask((kind.request)(&at, admitted)).await;
                    self.judge(kind, result);
                }
            }
        }
    }

    fn judge(&self, kind: &Kind, result: Result<Response, ErrorCode>) {
        let succeeds = match &result {
            Ok(Response::Multi(results)) => !matches!(results.first(), Some(OpResult::Error(_))),
            other => other.is_ok(),
        };
        assert_eq!(succeeds, kind.succeeds, "{}: {:.200}", kind.name, format!("{result:?}"));
    }

    /// What comes before it. The token of the first place that it takes.
    async fn prepare(&mut self, kind: &Kind, root: &str) -> FencingToken {
        let root_made = self.raw.create(root, "", CreateMode::Persistent).await;
        assert_eq!(root_made.as_deref(), Ok(root));
        let mut token = FencingToken::default();
        let all = (kind.prepare)(root);
        for some in all.chunks(WINDOW) {
            let mut waiting = Vec::new();
            for request in some {
                self.note(request);
                waiting.push(self.raw.send(request.clone()).await);
            }
            for one in waiting {
                let answer = self.raw.answer(one).await.expect("the connection stays").unwrap();
                if let Response::QueuePositions(positions) = answer
                    && let Some(QueuePosition::Held(claim)) = positions.first()
                {
                    token = claim.token;
                }
            }
        }
        token
    }

    async fn ask(&mut self, request: Request) -> Result<Response, ErrorCode> {
        self.note(&request);
        self.raw.call(request).await
    }

    fn note(&mut self, request: &Request) {
        self.sent += bytes(request) as u64;
        self.frames += 1;
    }
}
