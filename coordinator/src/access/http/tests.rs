//! Operators' listener, from the view of an HTTP client over a real socket.

mod access;
mod kept;
mod stories;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_consensus::status::NotServing;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup, spawn};
use rowlock_env::time::{Instant, timeout};
use rowlock_history::History;
use rowlock_metrics::{Role, Silence, TlsListener};
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::{Frozen, Machine};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::listen::{BoundedListener, Bounds};
use super::*;
use crate::access::report::Backups;
use crate::limits::{HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX};
use crate::node::delivery::registry::Registry;

const PATIENCE: Duration = Duration::from_secs(20);

struct Fixed;

impl StatusSource for Fixed {
    fn state(&self) -> StateView {
        StateView {
            applied_index: 41,
            zxid: Zxid(99),
            digest: "00ff".to_owned(),
            sessions: 3,
            ..StateView::default()
        }
    }

    fn freeze(&self) -> Frozen {
        Machine::new().freeze()
    }
}

fn reports() -> Reports {
    let (clock, tasks) = (Arc::new(LogClock::starting_now()), TaskGroup::new(Shutdown::new()));
    let backups = Backups::new(std::env::temp_dir(), "test".to_owned());
    Reports::new(History::default(), Arc::new(Registry::new()), clock, backups, tasks)
}

fn leading() -> Status {
    Status {
        node: NodeId(2),
        role: Role::Leader,
        term: 7,
        leader: Some(NodeId(2)),
        serving: true,
        voters: vec![NodeId(1), NodeId(2), NodeId(3)],
        ..Status::default()
    }
}

/// Returns the context of a listener without required tokens.
pub(super) fn context(status: Receiver<Status>, metrics: Arc<Metrics>) -> HttpContext {
    HttpContext {
        metrics,
        status,
        source: Arc::new(Fixed),
        reports: reports(),
        hosts: Some(Arc::from(["rowlock.internal".to_owned()])),
        access: Arc::new(Access::new(false, None, Vec::new())),
        nodes: Arc::from([HttpAddresses { node: 2, http: "127.0.0.1:8082".to_owned(), api: None }]),
        elections: Arc::default(),
        leader_view: Arc::default(),
        started: Instant::now(),
        turnstile: Turnstile::default(),
    }
}

struct Server {
    addr: String,
    status: watch::Sender<Status>,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
    task: rowlock_env::task::Task<()>,
}

async fn start() -> Server {
    start_with(Access::new(false, None, Vec::new()), None).await
}

async fn start_with(access: Access, keeper: Option<Arc<Keeper>>) -> Server {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().to_string();
    let (status, receiver) = watch::channel(leading());
    let metrics = Arc::new(Metrics::default());
    let context = HttpContext { access: Arc::new(access), ..context(receiver, metrics.clone()) };
    let shutdown = Shutdown::new();
    let task = spawn("http", serve(listener, context, keeper, shutdown.clone()));
    Server { addr, status, metrics, shutdown, task }
}

/// Returns status code, head and body of the response; waits until the server closes the connection.
async fn send(addr: &str, request_line: &str) -> (u16, String, String) {
    let mut stream = Stream::connect(addr, PATIENCE).await.unwrap();
    stream.write_all(format!("{request_line} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("the server closes").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn status_names_the_digest_with_the_index_it_belongs_to() {
    let server = start().await;
    let (code, _, body) = send(&server.addr, "GET /v1/status").await;
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(code, 200);
    assert_eq!(status["state"]["applied_index"], 41);
    assert_eq!(status["state"]["digest"], "00ff");
    assert_eq!(status["state"]["zxid"], 99);
    assert_eq!(status["raft"]["voters"], json!([1, 2, 3]));
    assert_eq!(status["raft"]["term"], 7);
    assert_eq!((&status["certificates"], &status["raft"]["silent"]), (&json!([]), &json!([])));
    server.metrics.tls_cert_expiry_seconds.set(TlsListener::Http, 86_400);
    let silence = Silence { node: NodeId(3), lasts: Duration::from_millis(2_500), is_least: false };
    server.metrics.member_silent_seconds.set(vec![silence]);
    let (_, _, body) = send(&server.addr, "GET /v1/status").await;
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["certificates"], json!([{ "listener": "http", "expires_in_s": 86_400 }]));
    assert_eq!(status["raft"]["silent"], json!([{ "node": 3, "for_ms": 2_500 }]));
    assert_eq!(status["raft"]["leaderless_since_ms"], Value::Null);
    server.status.send(Status { role: Role::Follower, leaderless_since_ms: Some(5), ..leading() });
    let (_, _, body) = send(&server.addr, "GET /v1/status").await;
    let raft = serde_json::from_str::<Value>(&body).unwrap()["raft"].clone();
    assert_eq!(
        (&raft["silent"], &raft["leaderless_since_ms"]),
        (&Value::Null, &json!(5)),
        "only the leader knows"
    );
}

#[tokio::test]
async fn status_counts_grants_and_waits_of_locks() {
    let server = start().await;
    server.metrics.locks_held.set(3);
    server.metrics.lock_waiters.set(2);
    server.metrics.lock_grants_total.add(7);
    for ms in [1, 40, 9_000_000] {
        server.metrics.lock_wait_seconds.record(Duration::from_millis(ms));
    }
    let (_, _, body) = send(&server.addr, "GET /v1/status").await;
    let locks = serde_json::from_str::<Value>(&body).unwrap()["locks"].clone();
    assert_eq!((&locks["held"], &locks["waiting"], &locks["grants"]), (&json!(3), &json!(2), &json!(7)));
    let (bounds, waits) = (locks["wait_bounds_ms"].as_array().unwrap(), locks["waits"].as_array().unwrap());
    assert_eq!(
        (bounds.len() + 1, &waits[0], &waits[bounds.len() - 1], &waits[bounds.len()]),
        (waits.len(), &json!(1), &json!(2), &json!(3)),
        "{locks}"
    );
}

#[tokio::test]
async fn metrics_are_served() {
    let server = start().await;
    server.metrics.sessions.set(12);
    let (_, head, body) = send(&server.addr, "GET /metrics").await;
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nrowlock_sessions 12\n"), "{body}");
}

#[tokio::test]
async fn shutdown_ends_the_listener() {
    let server = start().await;
    assert_eq!(send(&server.addr, "GET /livez").await.0, 200);
    server.shutdown.trigger();
    timeout(PATIENCE, server.task).await.expect("serve ends").unwrap();
    assert!(Stream::connect(&server.addr, PATIENCE).await.is_err());
}

#[tokio::test]
async fn a_silent_connection_is_closed_at_its_deadline_and_makes_room() {
    let inner = Listener::bind("127.0.0.1:0").await.unwrap();
    let addr = inner.local_addr().to_string();
    let (_status, receiver) = watch::channel(leading());
    let metrics = Arc::new(Metrics::default());
    let context = context(receiver, metrics.clone());
    let bounds = Bounds { connections: 1, head: Duration::from_millis(50), ..Bounds::default() };
    let listener = BoundedListener::new(inner, metrics, bounds, None);
    let turns = (Turnstile::default(), Class::Operator);
    let task = spawn("http", serve_connections(listener, router(context), turns, Shutdown::new()));
    let mut silent = Stream::connect(&addr, PATIENCE).await.unwrap();
    silent.write_all(b"GET /liv").await.unwrap();
    let (code, _, _) = send(&addr, "GET /livez").await;
    assert_eq!(code, 200, "the only place is free again");
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, silent.read_to_end(&mut rest)).await.expect("the server closed the silent one");
    task.abort();
}

#[tokio::test]
async fn idle_connections_and_partial_requests_do_not_delay_probes() {
    let server = start().await;
    let mut idle = Vec::new();
    for n in 0..HTTP_CONNECTIONS_MAX + 16 {
        let mut stream = Stream::connect(&server.addr, PATIENCE).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = timeout(HTTP_CONNECTION_MAX / 2, send(&server.addr, &format!("GET {path}"))).await;
        assert_eq!(answer.expect("well before the idle ones are closed anyway").0, 200, "{path}");
    }
}

#[tokio::test]
async fn missing_head_ends_the_connection_at_the_head_deadline() {
    let server = start().await;
    let mut silent = Stream::connect(&server.addr, PATIENCE).await.unwrap();
    silent.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
    let mut rest = Vec::new();
    let end = timeout(HTTP_CONNECTION_MAX / 2, silent.read_to_end(&mut rest)).await;
    let _ = end.expect("the server closes it");
}

/// Sends a complete head and returns the status code of the response.
async fn code_of(addr: &str, head: &str) -> (u16, String) {
    let mut stream = Stream::connect(addr, PATIENCE).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("the server closes").unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

/// Opens about 1,700 connections per second, without a request or with a probe's request.
#[allow(clippy::disallowed_methods)] // they come from a thread of their own
#[tokio::test]
async fn flood_of_connections_does_not_delay_a_probe() {
    for request in ["", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let server = start().await;
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, addr) = (stop.clone(), server.addr.clone());
        let stop = Stop(stop);
        let flood = std::thread::spawn(move || {
            use std::io::Write as _;
            let mut open = std::collections::VecDeque::new();
            while !stops.load(Relaxed) {
                std::thread::sleep(Duration::from_micros(500));
                let Ok(mut stream) = std::net::TcpStream::connect(&addr) else { continue };
                let _ = stream.write_all(request.as_bytes());
                open.push_back(stream);
                if open.len() > 400 {
                    open.pop_front();
                }
            }
        });
        while server.metrics.http_connections_total.get() < 2_000 {
            rowlock_env::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            let answer = timeout(Duration::from_secs(1), send(&server.addr, "GET /livez")).await;
            assert_eq!(answer.expect("a probe gives up after a second").0, 200);
        }
        drop(stop);
        flood.join().unwrap();
    }
}

/// Stops the flood on drop, also when the test fails.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
