//! Operators' listener, from the view of an HTTP client over a real socket.

mod access;
mod kept;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rowlock_consensus::log_clock::LogClock;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::sync::watch;
use rowlock_env::task::{Shutdown, TaskGroup, spawn};
use rowlock_env::time::{Instant, timeout};
use rowlock_history::History;
use rowlock_proto::{NodeId, Zxid};
use rowlock_state::{Frozen, Machine};
use rowlock_types::limits::{HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX};
use rowlock_types::metrics::{Silence, TlsListener};
use rowlock_types::status::{NotServing, Role};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::listen::{BoundedListener, Bounds};
use super::*;
use crate::delivery::registry::Registry;
use crate::report::Backups;

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
        hosts: Arc::from(["rowlock.internal".to_owned()]),
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
async fn a_serving_node_is_live_and_ready() {
    let server = start().await;
    assert_eq!(send(&server.addr, "GET /livez").await.0, 200);
    let (code, head, body) = send(&server.addr, "GET /readyz").await;
    assert_eq!((code, body.as_str()), (200, "ready\n"));
    assert!(head.contains("connection: close"), "{head}");
    server.metrics.disk_free_bytes.set(7 << 20);
    let (_, _, body) = send(&server.addr, "GET /readyz?verbose").await;
    let lines = [
        "[+] leader: node 2 leads",
        "[+] serving: clients are served",
        "[+] memory: 0 MiB are held, without a limit",
        "[+] disk: 7 MiB are free",
        "ready",
    ];
    assert_eq!(body.lines().collect::<Vec<_>>(), lines);
    server.metrics.disk_low.set(1);
    let (code, _, body) = send(&server.addr, "GET /readyz?verbose").await;
    assert!(code == 200 && body.contains("7 MiB are free, less than limits.warn_free_bytes\n"), "{body}");
    server.metrics.disk_short.set(1);
    let (code, _, body) = send(&server.addr, "GET /readyz?verbose").await;
    assert!(code == 200 && body.contains("7 MiB are free, less than limits.min_free_bytes: "), "{body}");
    server.metrics.memory_bytes.set([9 << 20, 1 << 20, 0, 0, 0, 0, 0]);
    server.metrics.memory_limit_bytes.set(10 << 20);
    server.metrics.memory_full.set(1);
    let (code, _, body) = send(&server.addr, "GET /readyz?verbose").await;
    let line = "[+] memory: 10 of 10 MiB are held: new sessions and growing writes are refused\n";
    assert!(code == 200 && body.contains(line), "{body}");
    for (gauge, what) in [
        (&server.metrics.disk_hangs, "the disk does not answer"),
        (&server.metrics.commits_stalled, "no write was committed for ten seconds"),
    ] {
        gauge.set(1);
        for path in ["GET /readyz", "GET /health"] {
            let (code, _, body) = send(&server.addr, path).await;
            assert!(code == 503 && body.contains(what), "{path}: {body}");
        }
        gauge.set(0);
    }
    let (code, _, body) = send(&server.addr, "GET /health").await;
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &health["leader"], &health["role"]), (200, &2.into(), &"leader".into()));
}

#[tokio::test]
async fn node_that_does_not_serve_is_live_but_not_ready() {
    let server = start().await;
    let not_serving = Some(NotServing::NoQuorum);
    let alone = Status { leader: None, serving: false, not_serving, role: Role::Follower, ..leading() };
    server.status.send(alone);
    assert_eq!(send(&server.addr, "GET /livez").await.0, 200);
    let (code, head, body) = send(&server.addr, "GET /readyz?verbose").await;
    assert_eq!(code, 503);
    assert!(head.contains("application/problem+json"), "{head}");
    let problem: Value = serde_json::from_str(&body).unwrap();
    let why = "no leader is known; no contact to a quorum: a majority of the voters does not answer";
    assert_eq!(problem["detail"], why, "the reason, and no guesses");
    assert_eq!(problem["checks"][0]["passed"], false);
    assert_eq!(problem["status"], 503);
    assert_eq!(send(&server.addr, "GET /health").await.0, 503);
}

#[tokio::test]
async fn node_without_token_file_is_ready_with_previous_tokens() {
    let server = start().await;
    for (unusable, told) in [(0, false), (1, true), (0, false)] {
        server.metrics.token_file_unusable.set(unusable);
        let (code, _, body) = send(&server.addr, "GET /readyz?verbose").await;
        let has_line =
            body.contains("[+] tokens: the token file is missing or bad: all previous tokens stay valid");
        assert_eq!((code, has_line), (200, told), "{body}");
    }
}

#[tokio::test]
async fn restored_node_is_not_ready_until_the_grace_ends() {
    let server = start().await;
    server.metrics.restore_grace_seconds.set(28);
    let (code, _, body) = send(&server.addr, "GET /readyz").await;
    assert!(
        code == 503 && body.contains("the cluster was restored: sessions are opened in 28 s"),
        "{code} {body}"
    );
    let (_, _, body) = send(&server.addr, "GET /v1/status").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["restore_grace_s"], 28);
    server.metrics.restore_grace_seconds.set(0);
    assert_eq!(send(&server.addr, "GET /readyz").await.0, 200);
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
async fn metrics_and_version_are_served() {
    let server = start().await;
    server.metrics.sessions.set(12);
    let (_, head, body) = send(&server.addr, "GET /metrics").await;
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nrowlock_sessions 12\n"), "{body}");
    let (_, _, body) = send(&server.addr, "GET /version").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let server = start().await;
    let (code, head, body) = send(&server.addr, "GET /nothing").await;
    assert_eq!(code, 404);
    assert!(head.contains("application/problem+json"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["detail"], "there is no /nothing");
    for path in ["/livez", "/ui/", "/"] {
        let (code, head, body) = send(&server.addr, &format!("POST {path}")).await;
        assert!(code == 405 && head.contains("allow: get,head"), "{head}");
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["detail"], format!("{path} does not take POST"));
    }
}

#[tokio::test]
async fn operators_listener_names_the_lock_listener_and_console() {
    let server = start().await;
    let (code, head, _) = send(&server.addr, "GET /").await;
    assert!(code == 307 && head.contains("location: /ui/"), "{head}");
    for request in ["POST /v1/locks/ci/deploy/acquire", "POST /v1/leases"] {
        let (_, _, body) = send(&server.addr, request).await;
        assert!(body.contains("here: this node takes no locks by HTTP; add `api`"), "{request}: {body}");
    }
    let (code, _, body) = send(&server.addr, "GET /v1/locks/ci/none").await;
    assert!(
        code == 404 && body.contains("there is no /locks/ci/none"),
        "the queue of that lock: {code} {body}"
    );
}

#[tokio::test]
async fn reports_are_documents_and_their_refusals_problems() {
    let server = start().await;
    let (code, head, body) = send(&server.addr, "GET /v1/locks?limit=5").await;
    assert_eq!(code, 200, "{body}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&document["locks"], &document["more"]), (&json!([]), &false.into()));
    for (asked, expected, detail) in [
        ("/v1/access", 400, "the lock is missing: /v1/access?lock=NAME"),
        ("/v1/queue", 400, "the lock is missing: /v1/queue?lock=NAME"),
        ("/v1/queue?lock=/none", 404, "there is no /none"),
        ("/v1/sessions?session=0x5", 403, "0x5 is a foreign session, visible to superusers only"),
        ("/v1/history", 501, "this node keeps no history: history.enabled = false in its cluster.toml"),
    ] {
        let (code, head, body) = send(&server.addr, &format!("GET {asked}")).await;
        assert_eq!(code, expected, "{asked}: {body}");
        assert!(head.contains("application/problem+json"), "{head}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["detail"], detail, "{asked}");
    }
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

#[tokio::test]
async fn requests_for_a_host_that_is_not_this_one_are_misdirected() {
    let server = start().await;
    for (head, expected) in [
        ("GET /v1/status HTTP/1.1\r\nHost: localhost:8081\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: LocalHost\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1:8081\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: 10.1.2.3\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: rowlock.internal:80\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: [::1]:8081\r\n\r\n", 200),
        ("GET /v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /livez HTTP/1.1\r\nHost: evil.example:8081\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1@evil.example\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.1\r\nHost: 1.2.3.4.evil.example\r\n\r\n", 421),
        ("GET http://evil.example/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.1\r\n\r\n", 421),
        ("GET /v1/status HTTP/1.0\r\n\r\n", 421),
        ("GET /livez HTTP/1.0\r\n\r\n", 200),
        ("GET /readyz HTTP/1.0\r\n\r\n", 200),
        ("GET /metrics HTTP/1.0\r\n\r\n", 200),
    ] {
        let (code, answer) = code_of(&server.addr, head).await;
        assert_eq!(code, expected, "{head}{answer}");
        if code == 421 {
            assert!(answer.contains("application/problem+json") && answer.contains("http.hosts"), "{answer}");
        }
    }
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

#[tokio::test]
async fn rules_of_locks_see_the_address_of_a_reader() {
    let server = start().await;
    let (code, _, body) = send(&server.addr, "GET /v1/access?lock=/locks/a").await;
    let access: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &access["who"]), (200, &json!(["ip:127.0.0.1"])));
}
