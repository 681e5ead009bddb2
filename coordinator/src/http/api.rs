//! The listener for locks and znodes by HTTP (docs/rest.md): JSON in, what [`crate::api`] decides, JSON out.
//! Certificates, tokens and hosts are those of the listener for operators.
//!
//! Invariant: what waits for a lock is bounded by the deciding module; every request is answered within
//! `limits::API_REQUEST_MAX`, or its connection ends. Invariant: a page of another site is refused, since its
//! browser may reach a loopback address that needs no token.

mod answer;
mod ask;
mod direct;
mod documents;
mod election;
mod forced;
mod invite;
mod openapi;
mod path_text;
mod query;
mod request;
mod session;
mod several;
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
use rowlock_env::time;
use rowlock_env::turnstile::Class;
use rowlock_proto::Right;
use rowlock_proto::acl::Id;
use rowlock_tls::Keeper;
use rowlock_types::limits::{
    API_BODY_MAX, API_BODY_MAX_BYTES, API_CONNECTION_MAX, API_CONNECTIONS_MAX,
    API_CONNECTIONS_OF_ADDRESS_MAX, API_IDLE_MAX, API_REQUEST_MAX,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::access::{self, Asker};
use super::connection::Visitor;
use super::listen::Bounds;
use super::problem::Problem;
use super::serve::{self, serve_connections};
use super::{HttpContext, finish_kept, host, not_here, not_taken, report};
use crate::api::{Api, Caller, LockName, Place, Refusal, Secret, Standing};
use crate::report::question::{Question, Scope};
use crate::tokens::Role;
pub use direct::{Direct, Pieces};
use path_text::PathText;
use request::{Acquire, NewLease, Release, Shown, Verify};

#[derive(Clone)]
pub struct ApiContext {
    /// Who may ask, for which hosts; metrics.
    pub http: HttpContext,
    pub api: Arc<Api>,
}

/// Serves locks on `listener` until `shutdown`, then until the requests under way are answered. `keeper`: of
/// the certificates, for TLS. `has_probes`: what operators ask for is here, too.
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
             to ask for tokens, set token_file in [http]"
        );
    }
    let (metrics, stile) = (context.http.metrics.clone(), context.http.turnstile.clone());
    let listener = super::bounded(listener, (bounds, metrics), keeper);
    let routes = router(context, has_probes, shutdown.clone());
    serve_connections(listener, routes, (stile, Class::Client), shutdown).await;
}

fn router(context: ApiContext, has_probes: bool, shutdown: Shutdown) -> Router {
    let http = context.http.clone();
    let check = axum::middleware::from_fn_with_state(http.clone(), access::check);
    let probes =
        if has_probes { super::probes().layer(check).with_state(http.clone()) } else { Router::default() };
    let of_lock = get(report).post(lock).delete(forced::force).fallback(no_method_of_lock);
    Router::new()
        .route("/v1/leases", post(new_lease))
        .route("/v1/leases/{id}/keepalive", post(keep_alive))
        .route("/v1/leases/{id}", delete(end_lease))
        .route("/v1/locks/{*rest}", of_lock)
        .route("/v1/locks/acquire", post(several::acquire))
        .route("/v1/elections/{name}/campaign", post(election::campaign))
        .route("/v1/elections/{name}/resign", post(election::resign))
        .route("/v1/elections/{name}/leader", get(election::leader))
        .route("/v1/terraform/{name}", any(state_lock::state_lock))
        .route("/v1/znodes", get(znode::znode))
        .route("/v1/znodes/", get(znode::znode))
        .route("/v1/znodes/{*path}", any_of_znode())
        .route("/v1/locks", get(report))
        .route("/v1/watch", get(watch::watch))
        .route("/v1/queue", get(report))
        .route("/v1/history", get(report))
        .route("/v1/sessions", get(report))
        .route("/v1/access", get(report))
        .route("/v1/sessions/{session}", delete(session::end))
        .route("/v1/status", get(status))
        .fallback(nothing)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(http.clone(), access::identify))
        .merge(probes)
        .merge(super::ui::routes())
        .merge(openapi::routes())
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn(refuse_pages))
        .layer(axum::middleware::from_fn_with_state(http, host::check))
        .layer(axum::middleware::from_fn_with_state(context.clone(), count))
        .layer(axum::middleware::map_response(finish_kept))
        .layer(axum::middleware::from_fn(take_turn))
        .layer(axum::middleware::from_fn(serve::end_turn))
        .layer(Extension(shutdown))
        .with_state(context)
}

async fn nothing(State(context): State<ApiContext>, uri: Uri) -> Problem {
    not_here(&uri, &context.http.where_probes_are(uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> Problem {
    not_taken(&method, &uri, "")
}

async fn no_method_of_lock(asked: Asked, PathText(rest): PathText) -> Denied {
    asked.not_allowed(allowed(&rest))
}

fn any_of_znode() -> MethodRouter<ApiContext> {
    get(znode::znode).put(znode::znode).post(znode::znode).delete(znode::znode)
}

/// Counts the request, and names the leader in the answer to a client that goes there.
async fn count(State(context): State<ApiContext>, request: Request, next: Next) -> Response {
    context.http.metrics.api_requests_total.inc();
    let prefers_leader = invite::prefers_leader(&request);
    let mut response = next.run(request).await;
    if prefers_leader && response.status().is_success() {
        invite::invite(&context, &mut response);
    }
    response
}

/// Tells the connection of its request, and ends a connection that is old. Answers have all of their bytes
/// when the handler is done, so that the rest is a matter of writing them.
pub(super) async fn take_turn(
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let turn = visitor.begins(None);
    let mut response = next.run(request).await;
    if visitor.age() >= API_CONNECTION_MAX {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    drop(turn);
    response
}

/// Browsers name the site of the page that asks, with every request that is not a plain GET. The console is
/// of this listener: its site is the host that the request is for, which [`host::check`] has let pass.
async fn refuse_pages(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) && !super::ui::is_own_page(headers) {
        return Problem::new(StatusCode::FORBIDDEN, "pages of other sites may not ask here").into_response();
    }
    next.run(request).await
}

/// The answer to a request that is not granted. It is in a box since it is large.
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

/// Who asks, for what, and whose API it is.
struct Asked {
    context: ApiContext,
    visitor: Visitor,
    asker: Asker,
    path: String,
}

impl FromRequestParts<ApiContext> for Asked {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, context: &ApiContext) -> Result<Self, Response> {
        type Who = (Extension<Asker>, ConnectInfo<Visitor>);
        let (Extension(asker), ConnectInfo(visitor)) = Who::from_request_parts(parts, context).await?;
        Ok(Asked { context: context.clone(), visitor, asker, path: parts.uri.path().to_owned() })
    }
}

impl Asked {
    fn api(&self) -> &Api {
        &self.context.api
    }

    fn caller(&self) -> Caller {
        let address = self.visitor.address;
        let ip = Id { scheme: "ip".to_owned(), id: address.ip().to_canonical().to_string() };
        let identities = [ip].into_iter().chain(self.asker.who().iter().cloned()).collect();
        Caller { address, identities, trace: self.asker.trace().cloned() }
    }

    fn check(&self, may: bool) -> Result<(), Denied> {
        let denied = || access::forbid(&self.context.http, &self.path, &self.visitor, &self.asker);
        if may { Ok(()) } else { Err(Denied(Box::new(denied()))) }
    }

    /// Refuses a caller whose token has no role for the lock.
    fn check_lock(&self, name: &LockName, right: Right) -> Result<(), Denied> {
        self.check_role(self.asker.may(&Role::lock(name.path())), right, name.path())
    }

    /// Refuses a caller that may not end other clients' holds of the lock: neither is it an operator, nor
    /// does a rule grant it.
    fn check_force(&self, name: &LockName) -> Result<(), Denied> {
        if self.asker.may(&Role::Operator) {
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

    /// The method is not one of those that this path takes.
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

/// The whole body of a request, up to this many bytes.
async fn read_body(body: Body, most: usize) -> Result<Bytes, Denied> {
    let read = time::timeout(API_BODY_MAX, axum::body::to_bytes(body, most)).await;
    read.map_err(|_| problem(StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned()))?
        .map_err(|_| {
            let detail = format!("the body has more than {most} bytes, or broke off");
            problem(StatusCode::PAYLOAD_TOO_LARGE, detail)
        })
}

/// The request's document; an empty body is one without fields.
async fn body<T: DeserializeOwned>(body: Body) -> Result<T, Denied> {
    let bytes = read_body(body, API_BODY_MAX_BYTES).await?;
    let text = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
    // A list would count as the fields one after another.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err(problem(StatusCode::BAD_REQUEST, "the body is no JSON object".to_owned()));
    }
    serde_json::from_slice(text)
        .map_err(|error| problem(StatusCode::BAD_REQUEST, format!("the body is not as documented: {error}")))
}

async fn new_lease(asked: Asked, request: Request) -> Answer {
    asked.check(asked.asker.may_have_leases())?;
    let NewLease { ttl_ms } = body(request.into_body()).await?;
    Ok(answer::opened(&asked.api().open(&asked.caller(), ttl_ms).await?))
}

async fn keep_alive(asked: Asked, PathText(id): PathText, request: Request) -> Answer {
    asked.check(asked.asker.may_have_leases())?;
    let secret = secret_for(&id, request).await?;
    let valid_for_ms = asked.api().keep_alive(&asked.caller(), &secret).await?;
    Ok(answer::kept(valid_for_ms, &asked.api().questions_to(secret.session)))
}

async fn end_lease(asked: Asked, PathText(id): PathText, request: Request) -> Answer {
    asked.check(asked.asker.may_have_leases())?;
    let secret = secret_for(&id, request).await?;
    asked.api().close(&asked.caller(), &secret).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// As at the listener for operators. A caller that may use a lock may also ask who holds it.
async fn report(asked: Asked, uri: Uri) -> Answer {
    let scope = Question::parse(&report::asked(&uri)).map_or(Scope::All, |question| question.scope());
    asked.check_role(asked.asker.may_see(&scope), Right::See, &scope.to_string())?;
    Ok(report::answer(&asked.context.http, (&asked.asker, &asked.visitor), &uri).await)
}

/// As at the listener for operators, and what the asker may do here.
async fn status(asked: Asked) -> Answer {
    let asker = &asked.asker;
    asked.check(asker.may(&Role::Read))?;
    let Json(mut status) = super::status::status(State(asked.context.http.clone())).await;
    let may = json!({ "lock": asker.may_lock_something(), "operate": asker.may(&Role::Operator), "sessions": asker.is_super() });
    status["may"] = may;
    Ok(Json(status).into_response())
}

/// What is done with a lock by POST.
const VERBS: [&str; 4] = ["acquire", "release", "verify", "ask"];

/// The right on a lock that a verb needs at least.
fn right_of(verb: &str) -> Right {
    match verb {
        "ask" => Right::Ask,
        "verify" => Right::See,
        _ => Right::Take,
    }
}

/// What a path below `/v1/locks/` takes: reading is for each, since a lock may have such a name.
fn allowed(rest: &str) -> &'static str {
    match rest.rsplit_once('/') {
        Some((lock, _)) if lock.ends_with("/holders") => "GET, HEAD, DELETE",
        Some((_, verb)) if VERBS.contains(&verb) => "GET, HEAD, POST",
        _ => "GET, HEAD",
    }
}

/// What is done with a lock stands behind its name, which may have slashes.
async fn lock(asked: Asked, PathText(rest): PathText, request: Request) -> Answer {
    let verb = rest.rsplit_once('/').filter(|(_, verb)| VERBS.contains(verb));
    let (name, verb) = verb.ok_or_else(|| asked.not_allowed(allowed(&rest)))?;
    let name: LockName = name.parse()?;
    asked.check_lock(&name, right_of(verb))?;
    let (api, caller, headers) = (asked.api(), asked.caller(), request.headers().clone());
    match verb {
        "acquire" => {
            let acquire: Acquire = body(request.into_body()).await?;
            let wanted = acquire.wanted(&headers)?;
            Ok(standing(&asked, &api.acquire(&caller, &name, wanted).await?))
        }
        "ask" => ask::ask(&asked, &name, request).await,
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

fn standing(asked: &Asked, standing: &Standing) -> Response {
    let holds = matches!(standing.place, Place::Held(_));
    let questions = if holds { asked.api().questions_to(standing.lease) } else { Vec::new() };
    answer::standing(standing, &questions)
}

/// The secret that the request shows, of the lease in its path.
async fn secret_for(id: &str, request: Request) -> Result<Secret, Denied> {
    let headers: HeaderMap = request.headers().clone();
    let shown: Shown = body(request.into_body()).await?;
    let secret = shown.secret(&headers)?;
    if secret.session.to_string() == id { Ok(secret) } else { Err(Refusal::WrongSecret.into()) }
}
