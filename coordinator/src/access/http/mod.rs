//! HTTP. The operators' listener serves health, metrics, version, status and reports, read-only. Without
//! `tls` or `token_file` in `[http]` there is no authentication, and the listener must be on a loopback
//! address. The listener for locks is [`api`].
//!
//! Invariant: handlers of the operators' listener read published data (metrics, status, the replica through
//! [`StatusSource`]); they never call Raft, never propose and never wait. Invariant: a connection carries one
//! request and ends within `limits::HTTP_CONNECTION_MAX`, and at most `limits::HTTP_CONNECTIONS_MAX` are
//! open, so no HTTP client holds resources for long. Invariant: a request for a foreign host name is refused,
//! so a web page of another site cannot read from this listener.

mod access;
pub mod api;
mod connection;
mod health;
mod listen;
mod problem;
mod report;
mod status;
mod ui;

use std::sync::Arc;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rowlock_consensus::status::Status;
use rowlock_env::busy::{self, Work};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::Shutdown;
use rowlock_env::time::Instant;
use rowlock_env::turnstile::{Class, Turnstile};
use rowlock_metrics::Metrics;
use rowlock_tls::Keeper;

use crate::access::report::Reports;
pub use access::Access;
use connection::SecureHttp;
use listen::{BoundedListener, Bounds, serve_connections};
use problem::Problem;
pub use status::{Elections, HttpAddresses, LeaderView, StateView, StatusSource};

#[derive(Clone)]
pub struct HttpContext {
    pub metrics: Arc<Metrics>,
    pub status: Receiver<Status>,
    /// Replicated state and this node's connections.
    pub source: Arc<dyn StatusSource>,
    /// Reports on locks, queues, sessions and the history.
    pub reports: Reports,
    /// Permitted host names of requests, besides IP addresses and localhost. `None`: any.
    pub hosts: Option<Arc<[String]>>,
    pub access: Arc<Access>,
    /// Addresses of all nodes, for links in the console.
    pub nodes: Arc<[HttpAddresses]>,
    /// Recent leaders, as seen by this node.
    pub elections: Arc<Elections>,
    /// Leader's view of the members.
    pub leader_view: Arc<LeaderView>,
    pub started: Instant,
    /// Turnstile of the connections' tasks.
    pub turnstile: Turnstile,
}

/// Serves HTTP requests on `listener` until `shutdown`, then completes pending requests (bounded by
/// `limits::HTTP_CONNECTION_MAX`). `keeper` holds the certificates; `None` serves without TLS.
pub async fn serve(
    listener: Listener,
    context: HttpContext,
    keeper: Option<Arc<Keeper>>,
    shutdown: Shutdown,
) {
    let (metrics, turnstile) = (context.metrics.clone(), context.turnstile.clone());
    let listener = bounded(listener, (Bounds::default(), metrics), keeper);
    serve_connections(listener, router(context), (turnstile, Class::Operator), shutdown).await;
}

fn bounded(
    listener: Listener,
    (bounds, metrics): (Bounds, Arc<Metrics>),
    keeper: Option<Arc<Keeper>>,
) -> BoundedListener {
    let secure = keeper.map(|keeper| Arc::new(SecureHttp::new(keeper, metrics.clone())));
    BoundedListener::new(listener, metrics, bounds, secure)
}

/// Routes for orchestrators and monitoring.
fn probes() -> Router<HttpContext> {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/health", get(health::health))
        .route("/metrics", get(metrics))
        .route("/version", get(health::version))
}

fn router(context: HttpContext) -> Router {
    probes()
        .route("/v1/status", get(status::status))
        .route("/v1/locks", get(report::report))
        .route("/v1/locks/{*name}", get(report::report))
        .route("/v1/queue", get(report::report))
        .route("/v1/history", get(report::report))
        .route("/v1/contention", get(report::report))
        .route("/v1/sessions", get(report::report))
        .route("/v1/access", get(report::report))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(context.clone(), access::check))
        .merge(ui::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(context.clone(), access::check_host))
        .layer(axum::middleware::map_response(finish))
        .layer(axum::middleware::from_fn(listen::end_turn))
        .with_state(context)
}

/// Sets the headers of a response of the operators' listener: the connection closes after the response.
async fn finish(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    finish_kept(response).await
}

/// Sets the headers of a response: no caching, no sniffing of the content type.
async fn finish_kept(mut response: Response) -> Response {
    busy::spend(Work::HttpRequest, 1);
    busy::spend(Work::EncodedByte, response.body().size_hint().exact().unwrap_or_default());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn metrics(State(context): State<HttpContext>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], context.metrics.render()).into_response()
}

async fn not_found(State(context): State<HttpContext>, uri: Uri) -> Problem {
    not_here(&uri, &context.hint_to_locks(uri.path()))
}

fn not_here(uri: &Uri, elsewhere: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is no {}{elsewhere}", uri.path()))
}

async fn method_not_allowed(State(context): State<HttpContext>, method: Method, uri: Uri) -> Problem {
    not_taken(&method, &uri, &context.hint_to_locks(uri.path()))
}

fn not_taken(method: &Method, uri: &Uri, elsewhere: &str) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}{elsewhere}", uri.path()))
}

/// Prefixes of paths served only by the listener for locks.
const LOCK_PREFIXES: [&str; 8] = [
    "/v1/leases",
    "/v1/locks/",
    "/v1/elections/",
    "/v1/terraform/",
    "/v1/znodes",
    "/v1/watch",
    "/v1/openapi",
    "/docs",
];
/// Paths served only by the operators' listener.
const OPERATOR_PATHS: [&str; 5] = ["/livez", "/readyz", "/health", "/metrics", "/version"];

impl HttpContext {
    fn addresses(&self) -> Option<&HttpAddresses> {
        let me = self.status.borrow().node.0;
        self.nodes.iter().find(|node| node.node == me)
    }

    /// Returns the end of an error message of the operators' listener: a hint if the listener for locks
    /// serves `path`.
    fn hint_to_locks(&self, path: &str) -> String {
        match self.addresses() {
            Some(HttpAddresses { http, api, .. }) if LOCK_PREFIXES.iter().any(|of| path.starts_with(of)) => {
                match api {
                    Some(api) if api == http => String::new(),
                    Some(api) => format!(" here: locks by HTTP are at {api} (`api` in cluster.toml)"),
                    None => {
                        " here: this node takes no locks by HTTP; add `api` to its [[node]] in cluster.toml"
                            .to_owned()
                    }
                }
            }
            _ => String::new(),
        }
    }

    /// Returns the end of an error message of the listener for locks: a hint if only the operators' listener
    /// serves `path`.
    fn hint_to_probes(&self, path: &str) -> String {
        match self.addresses() {
            Some(HttpAddresses { http, api, .. })
                if api.as_ref() != Some(http) && OPERATOR_PATHS.contains(&path) =>
            {
                format!(" here: ask {http} (`http` in cluster.toml)")
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests;
