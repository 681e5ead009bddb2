//! HTTP. The listener for operators: health, metrics, version, status, reports. Read-only. Unless `[http]`
//! asks for TLS or tokens, it is without authentication and belongs on a loopback address. The listener for
//! locks is [`api`].
//!
//! Invariant: handlers of the listener for operators read what other parts publish (metrics, status, the
//! replica through [`StatusSource`]); they never touch Raft, never propose and never wait. Invariant: every
//! connection carries one request and ends within `limits::HTTP_CONNECTION_MAX`, and there are at most
//! `limits::HTTP_CONNECTIONS_MAX`, so that no HTTP client can hold anything for long. Invariant: a request
//! for a host that is not this one is refused, so that no web page reads here.

mod access;
pub mod api;
mod connection;
mod elections;
mod health;
mod host;
mod leader_view;
mod listen;
mod problem;
mod report;
mod secure;
mod serve;
mod status;
mod ui;

use std::sync::Arc;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rowlock_env::busy::{self, Work};
use rowlock_env::net::Listener;
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::Shutdown;
use rowlock_env::time::Instant;
use rowlock_env::turnstile::{Class, Turnstile};
use rowlock_tls::Keeper;
use rowlock_types::metrics::Metrics;
use rowlock_types::status::Status;

use crate::report::Reports;

use listen::{BoundedListener, Bounds};
use problem::Problem;
use secure::SecureHttp;
use serve::serve_connections;

pub use access::Access;
pub use elections::Elections;
pub use leader_view::LeaderView;
pub use status::{HttpAddresses, StateView, StatusSource};

#[derive(Clone)]
pub struct HttpContext {
    pub metrics: Arc<Metrics>,
    pub status: Receiver<Status>,
    /// The replicated state and this node's connections.
    pub source: Arc<dyn StatusSource>,
    /// Makes reports on locks, queues, sessions and their history.
    pub reports: Reports,
    /// Names that requests may be for, besides IP addresses and localhost.
    pub hosts: Arc<[String]>,
    pub access: Arc<Access>,
    /// Where the nodes listen: the console points there.
    pub nodes: Arc<[HttpAddresses]>,
    /// Which leaders it has seen.
    pub elections: Arc<Elections>,
    /// The leader's view of the members.
    pub leader_view: Arc<LeaderView>,
    pub started: Instant,
    /// Which connections pass before each turn.
    pub turnstile: Turnstile,
}

/// Answers HTTP requests on `listener` until `shutdown`, then until the requests under way are answered
/// (bounded by `limits::HTTP_CONNECTION_MAX`). `keeper`: of the certificates, for TLS.
pub async fn serve(
    listener: Listener,
    context: HttpContext,
    keeper: Option<Arc<Keeper>>,
    shutdown: Shutdown,
) {
    let (metrics, stile) = (context.metrics.clone(), context.turnstile.clone());
    let listener = bounded(listener, (Bounds::default(), metrics), keeper);
    serve_connections(listener, router(context), (stile, Class::Operator), shutdown).await;
}

fn bounded(
    listener: Listener,
    (bounds, metrics): (Bounds, Arc<Metrics>),
    keeper: Option<Arc<Keeper>>,
) -> BoundedListener {
    let secure = keeper.map(|keeper| Arc::new(SecureHttp::new(keeper, metrics.clone())));
    BoundedListener::new(listener, metrics, bounds, secure)
}

/// Routes for operators and orchestrators.
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
        .route("/v1/sessions", get(report::report))
        .route("/v1/access", get(report::report))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(context.clone(), access::check))
        .merge(ui::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(context.clone(), host::check))
        .layer(axum::middleware::map_response(finish))
        .layer(axum::middleware::from_fn(serve::end_turn))
        .with_state(context)
}

/// Headers of every answer of the listener for operators: it carries one request per connection.
async fn finish(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    finish_kept(response).await
}

/// Headers of every answer: nothing is kept by caches.
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
    context.metrics.turn_longest_seconds.raise_to(busy::take_longest_turn());
    ([(header::CONTENT_TYPE, content_type)], context.metrics.render()).into_response()
}

async fn not_found(State(context): State<HttpContext>, uri: Uri) -> Problem {
    not_here(&uri, &context.where_locks_are(uri.path()))
}

fn not_here(uri: &Uri, elsewhere: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is no {}{elsewhere}", uri.path()))
}

async fn method_not_allowed(State(context): State<HttpContext>, method: Method, uri: Uri) -> Problem {
    not_taken(&method, &uri, &context.where_locks_are(uri.path()))
}

fn not_taken(method: &Method, uri: &Uri, elsewhere: &str) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}{elsewhere}", uri.path()))
}

/// Prefixes of paths that only the listener for locks has.
const OF_LOCKS: [&str; 8] = [
    "/v1/leases",
    "/v1/locks/",
    "/v1/elections/",
    "/v1/terraform/",
    "/v1/znodes",
    "/v1/watch",
    "/v1/openapi",
    "/docs",
];
/// Paths that only the listener for operators has.
const OF_OPERATORS: [&str; 5] = ["/livez", "/readyz", "/health", "/metrics", "/version"];

impl HttpContext {
    fn addresses(&self) -> Option<&HttpAddresses> {
        let me = self.status.borrow().node.0;
        self.nodes.iter().find(|node| node.node == me)
    }

    /// What the listener for operators says of a path that it does not have or take: the end of a sentence.
    fn where_locks_are(&self, path: &str) -> String {
        match self.addresses() {
            Some(HttpAddresses { http, api, .. }) if OF_LOCKS.iter().any(|of| path.starts_with(of)) => {
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

    /// The same of the listener for locks, which has every path of the other one but these.
    fn where_probes_are(&self, path: &str) -> String {
        match self.addresses() {
            Some(HttpAddresses { http, api, .. })
                if api.as_ref() != Some(http) && OF_OPERATORS.contains(&path) =>
            {
                format!(" here: ask {http} (`http` in cluster.toml)")
            }
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests;
