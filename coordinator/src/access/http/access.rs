//! Authorization of HTTP requests. Probes need no identity. Without `tls` and `token_file` in `[http]`, no
//! request needs an identity; otherwise all other requests need a client certificate or a token.
//!
//! Must never do: reveal existing names or tokens to a refused caller.
//!
//! Check of the requested host. By DNS rebinding a foreign web page can point its host name to this node's
//! address; an operator's browser then sends requests with the foreign name, and this check refuses the
//! requests. IP addresses and localhost are not subject to rebinding; with TLS the certificate does not name
//! the foreign page.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crate::limits::{HOSTS_COUNTED_MAX, WRONG_PASSWORDS_PER_SECOND};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_env::rate::{Bucket, LogLimiter, PerHost};
use rowlock_env::{decides, time};
use rowlock_metrics::Metrics;
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;

use super::connection::Visitor;
use super::problem::{Denial, Problem};
use super::{HttpContext, api};
use crate::access::report::Viewer;
use crate::access::report::question::Scope;
use crate::access::tokens::{Role, TokenKeeper};
use crate::node::audit::{Audit, AuditRecord, Client, Event};
use crate::node::trace::{self, TraceParent};

/// Paths for orchestrators and load balancers.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/health"];
/// Longest accepted header; a token has fewer than a hundred bytes.
const AUTHORIZATION_MAX_BYTES: usize = 1_024;

/// Authorization policy of a listener.
pub struct Access {
    /// Requests need an identity.
    pub is_closed: bool,
    pub tokens: Option<Arc<TokenKeeper>>,
    /// Certificate subjects of operators.
    pub superusers: Vec<String>,
    wrong_tokens: PerHost,
    refusals_log: LogLimiter,
    audit: Audit,
}

/// Identities proven by the caller.
#[derive(Clone, Debug)]
pub(super) struct Principal {
    roles: BTreeSet<Role>,
    who: Vec<Id>,
    trace: Option<TraceParent>,
}

/// Request of an operator, for the audit log.
pub(super) struct AdminRequest<'a> {
    /// Name of the request in the audit log.
    pub(super) op: &'a str,
    /// Path of the znode; empty: none.
    pub(super) path: &'a str,
    /// Further fields of the record.
    pub(super) detail: &'a str,
    /// `ok`, or the name of the error.
    pub(super) result: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Unproven,
    WrongToken,
    /// Too many wrong tokens from this address.
    TooMany,
    /// Proven identity without the permission.
    Forbidden,
}

impl Access {
    /// Returns a policy for one listener. Unless `is_closed`, all callers may read.
    pub fn new(is_closed: bool, tokens: Option<Arc<TokenKeeper>>, superusers: Vec<String>) -> Self {
        let bucket = Bucket::new(WRONG_PASSWORDS_PER_SECOND, WRONG_PASSWORDS_PER_SECOND);
        let (wrong_tokens, audit) = (PerHost::new(bucket, HOSTS_COUNTED_MAX), Audit::default());
        Access { is_closed, tokens, superusers, wrong_tokens, refusals_log: LogLimiter::default(), audit }
    }

    /// Records refusals in `audit`.
    #[must_use]
    pub fn recorded_in(self, audit: Audit) -> Self {
        Access { audit, ..self }
    }

    /// Identifies a caller of the listener for locks; the handlers check the roles. With an open listener,
    /// each caller is an operator.
    fn identify(&self, request: &Request, visitor: &Visitor) -> Result<Principal, Refused> {
        if self.is_closed {
            return self.principal(request, visitor);
        }
        Ok(Principal { roles: [Role::Operator].into(), who: Vec::new(), trace: None })
    }

    fn authorize(&self, request: &Request, visitor: &Visitor) -> Result<Principal, Refused> {
        if !self.is_closed || PROBES.contains(&request.uri().path()) {
            return Ok(Principal { roles: [Role::Read].into(), who: Vec::new(), trace: None });
        }
        let principal = self.principal(request, visitor)?;
        let may = principal.roles.iter().any(|role| role.covers(&Role::Read));
        if decides!("http-request-is-permitted", may) { Ok(principal) } else { Err(Refused::Forbidden) }
    }

    /// Identifies a caller by its token, else by its certificate: a token was chosen for this request.
    fn principal(&self, request: &Request, visitor: &Visitor) -> Result<Principal, Refused> {
        let mut given = request.headers().get_all(header::AUTHORIZATION).iter();
        match (given.next(), given.next()) {
            (None, _) => {}
            (Some(one), None) => {
                // Terraform can send only basic authentication.
                let is_terraforms = request.uri().path().starts_with(api::state_lock::PREFIX);
                let password = is_terraforms.then(|| password_in(one)).flatten();
                return self.of_token(password.as_ref().unwrap_or(one), visitor.address);
            }
            (Some(_), Some(_)) => return Err(Refused::Unproven),
        }
        let subject = visitor.subject().ok_or(Refused::Unproven)?;
        let is_super = self.superusers.contains(&subject);
        let role = if is_super { Role::Operator } else { Role::Read };
        let who = superuser(is_super).chain([Id { scheme: "x509".to_owned(), id: subject }]);
        Ok(Principal { roles: [role].into(), who: who.collect(), trace: None })
    }

    fn of_token(&self, given: &HeaderValue, address: SocketAddr) -> Result<Principal, Refused> {
        let text = given.to_str().ok().filter(|text| text.len() <= AUTHORIZATION_MAX_BYTES);
        let bearer = text.and_then(|text| text.split_once(' '));
        let Some((_, token)) = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return Err(Refused::Unproven);
        };
        let tokens = self.tokens.as_ref().map(|keeper| keeper.current());
        let found = tokens.as_ref().and_then(|tokens| tokens.find(token.trim(), time::wall_ms()));
        match found {
            // The rate limit does not apply to right tokens: guessing a token of 256 bits is infeasible, and
            // a client with wrong tokens must not block other clients behind the same proxy.
            None if self.wrong_tokens.take(address.ip(), time::now()) => Err(Refused::WrongToken),
            None => Err(Refused::TooMany),
            Some(found) => {
                let named = Id { scheme: "token".to_owned(), id: found.name.clone() };
                let who = superuser(found.roles.contains(&Role::Operator)).chain([named]).collect();
                Ok(Principal { roles: found.roles.clone(), who, trace: None })
            }
        }
    }

    fn record(&self, refused: Refused, path: &str, visitor: &Visitor, trace: Option<&TraceParent>) {
        let (event, result) = match refused {
            Refused::WrongToken => (Event::Auth, "WrongToken"),
            Refused::TooMany => (Event::Auth, "TooManyGuesses"),
            Refused::Unproven => (Event::Denied, "Unproven"),
            Refused::Forbidden => (Event::Denied, "Forbidden"),
        };
        if !self.audit.wants(event) {
            return;
        }
        let who: Vec<Id> =
            visitor.subject().map(|id| Id { scheme: "x509".to_owned(), id }).into_iter().collect();
        let client = Client::new(&who, SessionId::NONE, visitor.address).traced(trace);
        let paths = [crate::node::audit::text(path)];
        self.audit.record(&AuditRecord { paths: &paths, result, ..AuditRecord::new(event, "http", client) });
    }

    /// Records a request denied by an ACL or a rule for a lock.
    fn record_denial(&self, denial: Denial, (method, path): (&Method, &str), who: (&Principal, &Visitor)) {
        let Denial { missing } = denial;
        let (event, op, result) = (Event::Denied, "http", "NoAuth");
        if self.audit.wants(event) {
            let (paths, client) = ([crate::node::audit::text(path)], who.0.client(who.1));
            let detail = method.as_str();
            self.audit.record(&AuditRecord { event, op, paths: &paths, detail, result, missing, client });
        }
    }

    /// Records an operator's request and its result.
    pub(super) fn record_admin(&self, done: &AdminRequest<'_>, principal: &Principal, visitor: &Visitor) {
        let client = principal.client(visitor);
        let AdminRequest { op, path, detail, result } = *done;
        let paths = (!path.is_empty()).then(|| crate::node::audit::text(path));
        let record = AuditRecord::new(Event::Admin, op, client);
        self.audit.record(&AuditRecord { paths: paths.as_slice(), detail, result, ..record });
    }

    fn count(&self, refused: Refused, address: SocketAddr, metrics: &Metrics) {
        match refused {
            Refused::Forbidden => metrics.http_forbidden_total.inc(),
            Refused::Unproven | Refused::WrongToken | Refused::TooMany => {
                metrics.http_unauthorized_total.inc();
            }
        }
        let what = match refused {
            Refused::WrongToken => "wrong token in an HTTP request",
            Refused::TooMany => "too many wrong tokens in HTTP requests",
            Refused::Unproven | Refused::Forbidden => return,
        };
        metrics.http_tokens_wrong_total.inc();
        if let Some(suppressed) = self.refusals_log.admit() {
            tracing::warn!(peer = %address, suppressed, "{what}");
        }
    }
}

/// Converts the password of a basic login to a bearer token.
fn password_in(given: &HeaderValue) -> Option<HeaderValue> {
    let text = given.to_str().ok().filter(|text| text.len() <= AUTHORIZATION_MAX_BYTES)?;
    let (_, login) = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))?;
    let login = String::from_utf8(STANDARD.decode(login.trim()).ok()?).ok()?;
    let (_, password) = login.split_once(':')?;
    HeaderValue::from_str(&format!("Bearer {password}")).ok()
}

fn superuser(is_super: bool) -> impl Iterator<Item = Id> {
    is_super.then(|| Id { scheme: "super".to_owned(), id: String::new() }).into_iter()
}

impl Principal {
    /// Returns the viewer for reports.
    pub(super) fn reader(&self, visitor: &Visitor) -> Viewer {
        Viewer { who: self.identities(visitor), session: SessionId::NONE }
    }

    /// Returns the address and the proven identities, for rules of locks and ACLs.
    pub(super) fn identities(&self, visitor: &Visitor) -> Vec<Id> {
        let address = visitor.address.ip().to_canonical().to_string();
        [Id { scheme: "ip".to_owned(), id: address }].into_iter().chain(self.who.iter().cloned()).collect()
    }

    fn client(&self, visitor: &Visitor) -> Client {
        Client::new(&self.who, SessionId::NONE, visitor.address).traced(self.trace.as_ref())
    }

    pub(super) fn trace(&self) -> Option<&TraceParent> {
        self.trace.as_ref()
    }

    /// Returns whether one of the caller's roles covers `role`.
    pub(super) fn may(&self, role: &Role) -> bool {
        self.roles.iter().any(|has| has.covers(role))
    }

    /// Returns whether the caller may request a report on these locks. ACLs decide about the visible content.
    pub(super) fn may_see(&self, scope: &Scope) -> bool {
        self.may(&Role::Read) || self.roles.iter().any(|role| role.covers_scope(scope))
    }

    /// Returns whether the caller may open leases: its roles include ephemeral znodes or locks.
    pub(super) fn may_have_leases(&self) -> bool {
        self.may_take_locks() || self.roles.iter().any(|role| matches!(role, Role::Znode(_)))
    }

    /// Returns whether the caller passes all ACLs: a proven operator.
    pub(super) fn is_super(&self) -> bool {
        rowlock_state::acl::is_super(&self.who)
    }

    /// Returns whether the caller may take at least one lock.
    pub(super) fn may_take_locks(&self) -> bool {
        self.roles.iter().any(|role| matches!(role, Role::Operator | Role::Lock(_)))
    }
}

/// Middleware of the operators' listener: passes permitted requests and attaches the [`Principal`] for the
/// handlers.
pub(super) async fn check(
    State(context): State<HttpContext>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let authorized = context.access.authorize(&request, &visitor);
    pass(&context, authorized, &visitor, request, next).await
}

/// Middleware of the listener for locks: passes a caller with any proven identity.
pub(super) async fn identify(
    State(context): State<HttpContext>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let authorized = context.access.identify(&request, &visitor);
    pass(&context, authorized, &visitor, request, next).await
}

/// Refuses a request after the handler's check of the roles; counts and records the refusal.
pub(super) fn forbid(
    context: &HttpContext,
    path: &str,
    visitor: &Visitor,
    principal: &Principal,
) -> Response {
    context.access.count(Refused::Forbidden, visitor.address, &context.metrics);
    context.access.record(Refused::Forbidden, path, visitor, principal.trace());
    Refused::Forbidden.into_response()
}

async fn pass(
    context: &HttpContext,
    authorized: Result<Principal, Refused>,
    visitor: &Visitor,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(trace::HEADER).and_then(|value| value.to_str().ok());
    let trace = header.and_then(TraceParent::parse);
    match authorized {
        Ok(principal) => {
            let principal = Principal { trace, ..principal };
            request.extensions_mut().insert(principal.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let response = next.run(request).await;
            if let Some(denial) = response.extensions().get::<Denial>() {
                context.access.record_denial(*denial, (&method, &path), (&principal, visitor));
            }
            response
        }
        Err(refused) => {
            context.access.count(refused, visitor.address, &context.metrics);
            context.access.record(refused, request.uri().path(), visitor, trace.as_ref());
            refused.into_response()
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, detail) = match self {
            Refused::Unproven => {
                (StatusCode::UNAUTHORIZED, "this request needs a token or a client certificate")
            }
            Refused::WrongToken => (StatusCode::UNAUTHORIZED, "the token does not count"),
            Refused::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens; wait a second"),
            Refused::Forbidden => (StatusCode::FORBIDDEN, "the token does not allow this"),
        };
        let mut response = Problem::new(status, detail).into_response();
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// Paths for load balancers that send HTTP/1.0 without a Host header. No browser omits the header.
const PROBES_WITHOUT_HOST: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Passes requests for this host and refuses all others.
pub(super) async fn check_host(State(context): State<HttpContext>, request: Request, next: Next) -> Response {
    match context.hosts.as_deref().and_then(|hosts| misdirected(&request, hosts)) {
        None => next.run(request).await,
        Some(detail) => Problem::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response(),
    }
}

fn misdirected(request: &Request, hosts: &[String]) -> Option<String> {
    const REMEDY: &str = "use an IP address or localhost, or add the name to http.hosts in cluster.toml";
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (None, _)
            if request.version() == Version::HTTP_10
                && PROBES_WITHOUT_HOST.contains(&request.uri().path()) =>
        {
            None
        }
        (Some(host), None) => Some(host.to_str().unwrap_or_default()),
        _ => return Some(format!("the request must name one host; {REMEDY}")),
    };
    // A target in absolute form has priority over the header.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let stranger = host.into_iter().chain(target).find(|host| !is_here(host, hosts))?;
    let shown: String = stranger.chars().filter(|c| !c.is_control()).take(64).collect();
    Some(format!("the host name of this node is not \"{shown}\"; {REMEDY}"))
}

/// Parses `host` or `host:port` and compares the host; any port is valid, since a proxy may use another port.
fn is_here(authority: &str, hosts: &[String]) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest
            .split_once(']')
            .is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port(port));
    }
    let end = authority.find(':').unwrap_or(authority.len());
    let (host, port) = authority.split_at(end);
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_known = host.parse::<Ipv4Addr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
    is_known && is_port(port)
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_matches_only_as_a_whole() {
        let hosts = ["rowlock.internal".to_owned()];
        for here in ["rowlock.internal", "ROWLOCK.internal:80", "rowlock.internal.", "[::1]", "1.2.3.4:5"] {
            assert!(is_here(here, &hosts), "{here}");
        }
        for other in
            ["", "internal", "x.rowlock.internal", "rowlock.internal:80@evil", "[::1].evil", "::1", "1.2.3"]
        {
            assert!(!is_here(other, &hosts), "{other}");
        }
    }
}
