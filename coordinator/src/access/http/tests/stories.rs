//! Requests by HTTP as text in `testdata/rest`, on the routers of a node with a log of one. Requests:
//! [`rowlock_frames::rest`].
//!
//! A case begins with a node. `node SETTING=VALUE ...` as its first line sets `min_timeout=MS`,
//! `sessions=COUNT`, and tokens: `@NAME=ROLE,ROLE`, with `!` behind an expired token. A case with the line
//! `node` runs only here, and may have the following lines; `tests/rest.rs` sends other cases to real nodes.
//!
//! | line | |
//! |---|---|
//! | `log runs,stands,loses,expires` | the fate of the following writes |
//! | `leader away,back` | the leader confirms keepalives, or does not |
//! | `serve off,on` | the node loses its quorum, or has it again |
//! | `follower` | the node reports that it follows without a leader |
//! | `gauge NAME VALUE` | sets a metric that readiness and status depend on |
//! | `sessions` | timeouts of all sessions, in milliseconds |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::limits;
use axum::body::Body;
use axum::extract::connect_info::ConnectInfo;
use axum::http::Version;
use futures_util::StreamExt as _;
use rowlock_frames::rest::{Client, Request, Response, Transport};
use rowlock_proto::Zxid;
use rowlock_state::Frozen;
use tokio::sync::mpsc;
use tower_service::Service as _;

use super::super::access::Access;
use super::super::api::{self, ApiContext};
use super::super::connection::Visitor;
use super::*;
use crate::access::tests::Node;
use crate::access::tokens::{self, Token};
use crate::node::context::Replica;
use crate::node::zk::tests::node::{Log, config};

/// Nodes that a case can name. All have one state, as nodes of a cluster have.
const NODES: usize = 3;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rest")
}

fn play(name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut stage: Option<Stage> = None;
    let played = rowlock_stories::play(&testdata().join(format!("{name}.txt")), |paragraph| {
        runtime.block_on(async {
            if paragraph.starts_with("== ") {
                if let Some(ended) = stage.take() {
                    ended.stop().await;
                }
                return String::new();
            }
            let settings =
                paragraph.strip_prefix("node").filter(|rest| rest.is_empty() || rest.starts_with(' '));
            if stage.is_none() {
                stage = Some(Stage::new(settings.unwrap_or_default()).await);
            }
            let stage = stage.as_mut().expect("a stage");
            if settings.is_some() { "ready".to_owned() } else { stage.run(paragraph).await }
        })
    });
    if let Some(ended) = stage.filter(|_| played.is_ok()) {
        runtime.block_on(ended.stop());
    }
    played.unwrap_or_else(|difference| panic!("{difference}"));
}

struct Stage {
    node: Node,
    client: Client<Routers>,
    /// Folder of the token file.
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn new(settings: &str) -> Stage {
        let (mut config, mut made) = (config(), Vec::new());
        for (key, value) in settings.split_whitespace().filter_map(|word| word.split_once('=')) {
            match key {
                "min_timeout" => config.session.min_timeout_ms = value.parse().expect("milliseconds"),
                "sessions" => config.limits.sessions = value.parse().expect("a count"),
                _ => {
                    let (name, end) = (key.strip_prefix('@').expect("a setting"), value.strip_suffix('!'));
                    let roles = end.unwrap_or(value).split(',').map(|role| role.parse().expect("a role"));
                    made.push(Token::new(name.to_owned(), roles.collect(), end.map(|_| 1)));
                }
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let keeper = (!made.is_empty()).then(|| {
            let text: String = made.iter().map(|(token, _)| format!("{token}\n")).collect();
            tokens::open(super::access::write(&folder.path().join("tokens"), &text)).expect("tokens")
        });
        let access = Access::new(keeper.is_some(), keeper.map(Arc::new), Vec::new());
        let node = Node::with(config, "127.0.0.1:0", limits::HANDSHAKE_MAX).await;
        let http = HttpContext {
            source: Arc::new(Source(node.context.replica.clone())),
            reports: node.reports.clone(),
            access: Arc::new(access),
            nodes: Arc::from([HttpAddresses { node: 1, http: "127.0.0.1:8082".to_owned(), api: None }]),
            ..context(node.context.status.clone(), node.context.metrics.clone())
        };
        let of_api = |_| {
            let context = ApiContext { http: http.clone(), api: Arc::new(node.api()) };
            api::router(context, false, Shutdown::new())
        };
        let routers = [router(http.clone())].into_iter().chain((0..NODES).map(of_api)).collect();
        let tokens: BTreeMap<String, String> =
            made.into_iter().map(|(token, text)| (token.name, text)).collect();
        Stage { client: Client::new(Routers(routers), tokens), node, _folder: folder }
    }

    async fn run(&mut self, paragraph: &str) -> String {
        let words: Vec<&str> = paragraph.split(' ').collect();
        match words[..] {
            ["log", "runs"] => self.node.log(Log::Runs),
            ["log", "stands"] => self.node.log(Log::Stands),
            ["log", "loses"] => self.node.log(Log::Loses),
            ["log", "expires"] => self.node.log(Log::Expires),
            ["leader", place] => self.node.leader_in_contact.send(place == "back"),
            ["serve", "on"] => self.node.serve_again(),
            ["serve", "off"] => self.node.stop_serving(),
            ["follower"] => self.node.status.modify(|status| {
                status.not_serving = Some(NotServing::NoQuorum);
                (status.role, status.leader, status.serving) = (Role::Follower, None, false);
                status.leaderless_since_ms = Some(5);
            }),
            ["gauge", name, value] => self.gauge(name, value.parse().expect("a number")),
            ["sessions"] => {
                let state = self.node.context.replica.state.read();
                let timeouts = state.sessions().map(|(_, session)| session.timeout_ms.to_string());
                return format!(
                    "{} sessions {}",
                    state.counts().sessions,
                    timeouts.collect::<Vec<_>>().join(" ")
                );
            }
            _ => return self.client.run(paragraph).await,
        }
        "ok".to_owned()
    }

    fn gauge(&self, name: &str, value: u64) {
        let metrics = &self.node.context.metrics;
        match name {
            "disk_free_bytes" => metrics.disk_free_bytes.set(value),
            "disk_low" => metrics.disk_low.set(value),
            "disk_short" => metrics.disk_short.set(value),
            "disk_hangs" => metrics.disk_hangs.set(value),
            "commits_stalled" => metrics.commits_stalled.set(value),
            "memory_bytes" => metrics.memory_bytes.set([value, 0, 0, 0, 0, 0, 0]),
            "memory_limit_bytes" => metrics.memory_limit_bytes.set(value),
            "memory_full" => metrics.memory_full.set(value),
            "token_file_unusable" => metrics.token_file_unusable.set(value),
            "forgotten" => metrics.forgotten.set(value),
            "restore_grace_seconds" => metrics.restore_grace_seconds.set(value),
            other => panic!("gauge {other}"),
        }
    }

    async fn stop(self) {
        drop(self.client);
        self.node.stop().await;
    }
}

struct Source(Arc<Replica>);

impl StatusSource for Source {
    fn state(&self) -> StateView {
        let state = self.0.state.read();
        let counts = state.counts();
        let (zxid, sessions) = (Zxid(state.last_zxid().0), counts.sessions);
        StateView { zxid, sessions, znodes: counts.znodes, ..StateView::default() }
    }

    fn freeze(&self) -> Frozen {
        self.0.state.read().freeze()
    }
}

/// Routers of the operators' listener and of the listeners for locks.
#[derive(Clone)]
struct Routers(Arc<[Router]>);

impl Transport for Routers {
    async fn send(&self, request: Request) -> Response {
        let Request { node, from, method, target, is_http_1_0, headers, body } = request;
        let address = SocketAddr::new(from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), 7);
        let version = if is_http_1_0 { Version::HTTP_10 } else { Version::HTTP_11 };
        let mut built = axum::http::Request::builder().method(&*method).uri(target).version(version);
        for (name, value) in headers {
            built = built.header(name, value);
        }
        let built = built.extension(ConnectInfo(Visitor::unconnected(address))).body(Body::from(body));
        let Ok(response) = self.0[node].clone().call(built.expect("a request")).await;
        let headers = response.headers().iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        let (headers, status) = (headers.collect(), response.status().as_u16());
        let (pieces, body) = mpsc::channel(64);
        drop(spawn("body", async move {
            let mut data = response.into_body().into_data_stream();
            loop {
                let piece = tokio::select! { piece = data.next() => piece, () = pieces.closed() => return };
                let Some(Ok(piece)) = piece else { return };
                if pieces.send(piece.to_vec()).await.is_err() {
                    return;
                }
            }
        }));
        Response { status, headers, body }
    }
}

rowlock_stories::stories! {
    play, testdata();
    access
    bounds
    elections
    events
    leases
    locks
    probes
    problems
    several
    state_locks
    znodes
}
