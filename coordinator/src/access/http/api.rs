//! Listener for locks and znodes (docs/rest.md): parses JSON requests, calls [`crate::access::api`], and
//! encodes the results. Certificates, tokens and host checks are shared with the operators' listener.
//!
//! Invariant: [`crate::access::api`] bounds the requests waiting for locks; each request gets a response
//! within `limits::API_REQUEST_MAX`, or its connection ends. Invariant: requests from pages of other sites
//! are refused, since a browser may reach a loopback address without a token.

mod answer;
mod direct;
mod invite;
mod locks;
mod openapi;
mod request;
pub(super) mod state_lock;
mod watch;
mod znode;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, delete, get, post};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use rowlock_env::net::Listener;
use rowlock_env::task::Shutdown;
use rowlock_env::turnstile::Class;
use rowlock_env::{decides, time};
use rowlock_proto::Right;
use rowlock_proto::lock::QueuePosition;
use rowlock_tls::Keeper;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::access::{self, Principal};
use super::connection::Visitor;
use super::listen::{self, Bounds, serve_connections};
use super::problem::Problem;
use super::{HttpContext, finish_kept, not_here, not_taken, report};
use crate::access::api::{Acquired, Api, Caller, LockName, Refusal, Secret};
use crate::access::report::question::{Question, Scope};
use crate::access::tokens::Role;
use crate::limits::{
    API_BODY_MAX, API_BODY_MAX_BYTES, API_CONNECTION_MAX, API_CONNECTIONS_MAX,
    API_CONNECTIONS_OF_ADDRESS_MAX, API_IDLE_MAX, API_REQUEST_MAX,
};
pub use direct::{Direct, DirectRequest, Pieces};
use request::{Acquire, NewLease, PathText, Release, Shown, Verify};

#[derive(Clone)]
pub struct ApiContext {
    /// Access policy, host names, metrics.
    pub http: HttpContext,
    pub api: Arc<Api>,
}

/// Serves locks on `listener` until `shutdown`, then completes pending requests. `keeper` holds the
/// certificates; `None` serves without TLS. With `has_probes` the listener also serves the operators' paths.
pub async fn serve(
    listener: Listener,
    context: ApiContext,
    has_probes: bool,
    keeper: Option<Arc<Keeper>>,
    shutdown: Shutdown,
) {
    let bounds = Bounds {
        connections: API_CONNECTIONS_MAX,
        of_address: API_CONNECTIONS_OF_ADDRESS_MAX,
        life: API_REQUEST_MAX,
        idle: Some(API_IDLE_MAX),
        ..Bounds::default()
    };
    if !context.http.access.is_closed {
        tracing::info!(
            address = %listener.local_addr(),
            "locks by HTTP are open: every user of this machine may take, release and force-release them; \
             to require tokens, set token_file in [http]"
        );
    }
    let (metrics, turnstile) = (context.http.metrics.clone(), context.http.turnstile.clone());
    let listener = super::bounded(listener, (bounds, metrics), keeper);
    let routes = router(context, has_probes, shutdown.clone());
    serve_connections(listener, routes, (turnstile, Class::Client), shutdown).await;
}

pub(super) fn router(context: ApiContext, has_probes: bool, shutdown: Shutdown) -> Router {
    let http = context.http.clone();
    let check = axum::middleware::from_fn_with_state(http.clone(), access::check);
    let probes =
        if has_probes { super::probes().layer(check).with_state(http.clone()) } else { Router::default() };
    let of_lock = get(report).post(lock).delete(locks::force).fallback(no_method_of_lock);
    Router::new()
        .route("/v1/leases", post(new_lease))
        .route("/v1/leases/{id}/keepalive", post(keep_alive))
        .route("/v1/leases/{id}", delete(end_lease))
        .route("/v1/locks/{*rest}", of_lock)
        .route("/v1/locks/acquire", post(locks::acquire_all))
        .route("/v1/elections/{name}/campaign", post(locks::campaign))
        .route("/v1/elections/{name}/resign", post(locks::resign))
        .route("/v1/elections/{name}/leader", get(locks::leader))
        .route("/v1/terraform/{name}", any(state_lock::state_lock))
        .route("/v1/znodes", get(znode::znode))
        .route("/v1/znodes/", get(znode::znode))
        .route("/v1/znodes/{*path}", any_of_znode())
        .route("/v1/locks", get(report))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/queue", get(report))
        .route("/v1/history", get(report))
        .route("/v1/contention", get(report))
        .route("/v1/sessions", get(report))
        .route("/v1/access", get(report))
        .route("/v1/sessions/{session}", delete(locks::end_session))
        .route("/v1/status", get(status))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(http.clone(), access::identify))
        .merge(probes)
        .merge(super::ui::routes())
        .merge(openapi::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn(refuse_pages))
        .layer(axum::middleware::from_fn_with_state(http, access::check_host))
        .layer(axum::middleware::from_fn_with_state(context.clone(), count))
        .layer(axum::middleware::map_response(finish_kept))
        .layer(axum::middleware::from_fn(take_turn))
        .layer(axum::middleware::from_fn(listen::end_turn))
        .layer(Extension(shutdown))
        .with_state(context)
}

async fn not_found(State(context): State<ApiContext>, uri: Uri) -> Problem {
    not_here(&uri, &context.http.hint_to_probes(uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    not_taken(&method, &uri, "")
}

async fn no_method_of_lock(call: ApiCall, PathText(rest): PathText) -> Denied {
    call.not_allowed(allowed(&rest))
}

fn any_of_znode() -> MethodRouter<ApiContext> {
    get(znode::znode).put(znode::znode).post(znode::znode).delete(znode::znode)
}

/// Counts the request and adds the leader's address to the response for a client that prefers the leader.
async fn count(State(context): State<ApiContext>, request: Request, next: Next) -> Response {
    context.http.metrics.api_requests_total.inc();
    let prefers_leader = invite::prefers_leader(&request);
    let mut response = next.run(request).await;
    if prefers_leader && response.status().is_success() {
        invite::invite(&context, &mut response);
    }
    response
}

/// Marks the connection's request as pending, and closes an old connection after the response. A response is
/// complete when its handler returns; only writing remains.
pub(super) async fn take_turn(
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let turn = visitor.begin_request(None);
    let mut response = next.run(request).await;
    if visitor.age() >= API_CONNECTION_MAX {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    drop(turn);
    response
}

/// Refuses requests from pages of other sites. Browsers send the page's origin with each request except a
/// plain GET. The console's origin is the requested host, already checked by [`access::check_host`].
async fn refuse_pages(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) && !super::ui::is_own_page(headers) {
        return Problem::new(StatusCode::FORBIDDEN, "requests from pages of other sites are refused")
            .into_response();
    }
    next.run(request).await
}

/// Response of a refused request. Boxed for its size.
struct Denied(Box<Response>);

impl From<Problem> for Denied {
    fn from(problem: Problem) -> Self {
        Denied(Box::new(problem.into_response()))
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        *self.0
    }
}

type Answer = Result<Response, Denied>;

/// Context of a request: the caller, the path and the API.
struct ApiCall {
    context: ApiContext,
    visitor: Visitor,
    principal: Principal,
    path: String,
}

impl FromRequestParts<ApiContext> for ApiCall {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, context: &ApiContext) -> Result<Self, Response> {
        type Who = (Extension<Principal>, ConnectInfo<Visitor>);
        let (Extension(principal), ConnectInfo(visitor)) = Who::from_request_parts(parts, context).await?;
        Ok(ApiCall { context: context.clone(), visitor, principal, path: parts.uri.path().to_owned() })
    }
}

impl ApiCall {
    fn api(&self) -> &Api {
        &self.context.api
    }

    fn caller(&self) -> Caller {
        let address = self.visitor.address;
        let identities = self.principal.identities(&self.visitor).into();
        Caller { address, identities, trace: self.principal.trace().cloned() }
    }

    fn check(&self, may: bool) -> Result<(), Denied> {
        let denied = || access::forbid(&self.context.http, &self.path, &self.visitor, &self.principal);
        if decides!("http-path-is-permitted", may) { Ok(()) } else { Err(Denied(Box::new(denied()))) }
    }

    /// Refuses a caller without a role for the lock.
    fn check_lock(&self, name: &LockName, right: Right) -> Result<(), Denied> {
        self.check_role(self.principal.may(&Role::lock(name.path())), right, name.path())
    }

    /// Refuses a caller without permission to end other clients' holds: neither an operator nor granted by a
    /// rule.
    fn check_force(&self, name: &LockName) -> Result<(), Denied> {
        if decides!("principal-is-operator", self.principal.may(&Role::Operator)) {
            return Ok(());
        }
        self.check_lock(name, Right::Force)?;
        match self.api().grants(&self.caller(), name, Right::Force) {
            true => Ok(()),
            false => Err(Refusal::NoRight(Right::Force).into()),
        }
    }

    fn check_role(&self, has_role: bool, right: Right, path: &str) -> Result<(), Denied> {
        if has_role {
            return Ok(());
        }
        self.context.http.metrics.http_forbidden_total.inc();
        let detail = format!(
            "the token has no role for {path}, so the right \"{right}\" is missing; an operator can make another \
             one with `rowlock token new`"
        );
        Err(Problem::new(StatusCode::FORBIDDEN, detail).denied(Some(right)).into())
    }

    /// Returns the response for a method not served at this path.
    fn not_allowed(&self, allowed: &'static str) -> Denied {
        let detail = format!(
            "{} takes {allowed}; to acquire, release or verify a lock, POST to NAME/acquire etc.",
            self.path
        );
        let mut denied = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
        denied.0.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        denied
    }
}

fn problem(status: StatusCode, detail: String) -> Denied {
    Problem::new(status, detail).into()
}

/// Reads a body of at most `most` bytes.
async fn read_body(body: Body, most: usize) -> Result<Bytes, Denied> {
    let read = time::timeout(API_BODY_MAX, axum::body::to_bytes(body, most)).await;
    read.map_err(|_| problem(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".to_owned()))?
        .map_err(|_| {
            let detail = format!("the body has more than {most} bytes, or is incomplete");
            problem(StatusCode::PAYLOAD_TOO_LARGE, detail)
        })
}

/// Parses the request's JSON document; an empty body has no fields.
async fn body<T: DeserializeOwned>(body: Body) -> Result<T, Denied> {
    let bytes = read_body(body, API_BODY_MAX_BYTES).await?;
    let text = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
    // Serde would accept a list as the fields in order.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err(problem(StatusCode::BAD_REQUEST, "the body is not a JSON object".to_owned()));
    }
    serde_json::from_slice(text).map_err(|error| {
        problem(StatusCode::BAD_REQUEST, format!("the body does not match the documentation: {error}"))
    })
}

async fn new_lease(call: ApiCall, request: Request) -> Answer {
    call.check(call.principal.may_have_leases())?;
    let NewLease { ttl_ms } = body(request.into_body()).await?;
    Ok(answer::opened(&call.api().open(&call.caller(), ttl_ms).await?))
}

async fn keep_alive(call: ApiCall, PathText(id): PathText, request: Request) -> Answer {
    call.check(call.principal.may_have_leases())?;
    let secret = secret_for(&id, request).await?;
    let valid_for_ms = call.api().keep_alive(&call.caller(), &secret).await?;
    Ok(answer::kept(valid_for_ms, &call.api().questions_to(secret.session)))
}

async fn end_lease(call: ApiCall, PathText(id): PathText, request: Request) -> Answer {
    call.check(call.principal.may_have_leases())?;
    let secret = secret_for(&id, request).await?;
    call.api().close(&call.caller(), &secret).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Serves a report, like the operators' listener. A caller with a role for a lock may also read its holders.
async fn report(call: ApiCall, uri: Uri) -> Answer {
    let scope = Question::parse(&report::question_of(&uri)).map_or(Scope::All, |question| question.scope());
    call.check_role(call.principal.may_see(&scope), Right::See, &scope.to_string())?;
    Ok(report::answer(&call.context.http, (&call.principal, &call.visitor), &uri).await)
}

/// Serves the status, like the operators' listener, with the caller's permissions.
async fn status(call: ApiCall) -> Answer {
    let principal = &call.principal;
    call.check(principal.may(&Role::Read))?;
    let Json(mut status) = super::status::status(State(call.context.http.clone())).await;
    let may = json!({ "lock": principal.may_take_locks(), "operate": principal.may(&Role::Operator), "sessions": principal.is_super() });
    status["may"] = may;
    Ok(Json(status).into_response())
}

/// Operations on a lock, requested by POST.
const VERBS: [&str; 4] = ["acquire", "release", "verify", "ask"];

/// Returns the least right for an operation.
fn right_of(verb: &str) -> Right {
    match verb {
        "ask" => Right::Ask,
        "verify" => Right::See,
        _ => Right::Take,
    }
}

/// Returns the methods served at a path below `/v1/locks/`. GET is always included, since a lock's name may
/// end in the name of an operation.
fn allowed(rest: &str) -> &'static str {
    match rest.rsplit_once('/') {
        Some((lock, _)) if lock.ends_with("/holders") => "GET, HEAD, DELETE",
        Some((_, verb)) if VERBS.contains(&verb) => "GET, HEAD, POST",
        _ => "GET, HEAD",
    }
}

/// Splits the operation from the path: the lock's name may contain slashes, the operation is the last part.
async fn lock(call: ApiCall, PathText(rest): PathText, request: Request) -> Answer {
    let verb = rest.rsplit_once('/').filter(|(_, verb)| VERBS.contains(verb));
    let (name, verb) = verb.ok_or_else(|| call.not_allowed(allowed(&rest)))?;
    let name: LockName = name.parse()?;
    call.check_lock(&name, right_of(verb))?;
    let (api, caller, headers) = (call.api(), call.caller(), request.headers().clone());
    match verb {
        "acquire" => {
            let acquire: Acquire = body(request.into_body()).await?;
            let (part, options) = acquire.options(name, &headers)?;
            Ok(acquired(&call, &api.acquire(&caller, &[part], options).await?))
        }
        "ask" => locks::ask(&call, &name, request).await,
        "release" => {
            let release: Release = body(request.into_body()).await?;
            let (secret, which) = release.what(&headers)?;
            Ok(answer::released(api.release(&caller, &name, (&secret, &which)).await?))
        }
        _ => {
            let token = body::<Verify>(request.into_body()).await?.token()?;
            Ok(answer::held(api.verify(&caller, &name, token).await?))
        }
    }
}

fn acquired(call: &ApiCall, acquired: &Acquired) -> Response {
    let holds = matches!(acquired.positions[..], [QueuePosition::Held(_)]);
    let questions = if holds { call.api().questions_to(acquired.lease) } else { Vec::new() };
    answer::acquired(acquired, &questions)
}

/// Reads the secret of the request and checks that the secret belongs to the lease in the path.
async fn secret_for(id: &str, request: Request) -> Result<Secret, Denied> {
    let headers: HeaderMap = request.headers().clone();
    let shown: Shown = body(request.into_body()).await?;
    let secret = shown.secret(&headers)?;
    if secret.session.to_string() == id { Ok(secret) } else { Err(Refusal::WrongSecret.into()) }
}
