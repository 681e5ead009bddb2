//! Who may ask what. Probes are for everybody. The rest is too where neither `tls` nor `token_file` stands in
//! `[http]`; otherwise it needs a client certificate or a token.
//!
//! Must never do: tell a refused caller which names or tokens there are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rowlock_env::rate::{Bucket, LogLimiter, PerHost};
use rowlock_env::time;
use rowlock_proto::SessionId;
use rowlock_proto::acl::Id;
use rowlock_types::limits::{HOSTS_COUNTED_MAX, WRONG_PASSWORDS_PER_SECOND};
use rowlock_types::metrics::Metrics;

use super::connection::Visitor;
use super::problem::{Denial, Problem};
use super::{HttpContext, api};
use crate::audit::{Audit, AuditRecord, Client, Event};
use crate::report::Viewer;
use crate::report::question::Scope;
use crate::tokens::{Role, TokenKeeper};
use crate::trace::{self, TraceParent};

/// What orchestrators and load balancers ask for.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/health"];
/// The longest header that is looked at; a token has under a hundred bytes.
const AUTHORIZATION_MAX_BYTES: usize = 1_024;

/// What the listener asks of those who come.
pub struct Access {
    /// Whether anything is asked of them.
    pub is_closed: bool,
    pub tokens: Option<Arc<TokenKeeper>>,
    /// Subjects of certificates whose owners are operators.
    pub superusers: Vec<String>,
    wrong_tokens: PerHost,
    refusals_log: LogLimiter,
    audit: Audit,
}

/// Identities that the caller has proven.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    roles: BTreeSet<Role>,
    who: Vec<Id>,
    /// The trace that the request belongs to.
    trace: Option<TraceParent>,
}

/// What an operator has done.
pub(super) struct AdminRequest<'a> {
    /// As the audit log calls the request.
    pub(super) op: &'a str,
    /// On which znode; empty: on none.
    pub(super) path: &'a str,
    /// What else is to be known.
    pub(super) detail: &'a str,
    /// `ok`, or the name of the error.
    pub(super) result: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Unproven,
    WrongToken,
    /// There were too many wrong ones from its address.
    TooMany,
    /// It has proven who it is, and may not do this.
    Forbidden,
}

impl Access {
    /// For a listener of which everybody may read, unless `is_closed`.
    pub fn new(is_closed: bool, tokens: Option<Arc<TokenKeeper>>, superusers: Vec<String>) -> Self {
        let bucket = Bucket::new(WRONG_PASSWORDS_PER_SECOND, WRONG_PASSWORDS_PER_SECOND);
        let (wrong_tokens, audit) = (PerHost::new(bucket, HOSTS_COUNTED_MAX), Audit::default());
        Access { is_closed, tokens, superusers, wrong_tokens, refusals_log: LogLimiter::default(), audit }
    }

    /// Returns it with refusals recorded in `audit`.
    #[must_use]
    pub fn recorded_in(self, audit: Audit) -> Self {
        Access { audit, ..self }
    }

    /// Who asks at the listener for locks, whose handlers look at the role. Everybody may do everything if
    /// the listener is open.
    fn identify(&self, request: &Request, visitor: &Visitor) -> Result<Asker, Refused> {
        if self.is_closed {
            return self.asker(request, visitor);
        }
        Ok(Asker { roles: [Role::Operator].into(), who: Vec::new(), trace: None })
    }

    fn judge(&self, request: &Request, visitor: &Visitor) -> Result<Asker, Refused> {
        if !self.is_closed || PROBES.contains(&request.uri().path()) {
            return Ok(Asker { roles: [Role::Read].into(), who: Vec::new(), trace: None });
        }
        let asker = self.asker(request, visitor)?;
        let may = asker.roles.iter().any(|role| role.covers(&Role::Read));
        if may { Ok(asker) } else { Err(Refused::Forbidden) }
    }

    /// A token goes before a certificate: it was given for this request.
    fn asker(&self, request: &Request, visitor: &Visitor) -> Result<Asker, Refused> {
        let mut given = request.headers().get_all(header::AUTHORIZATION).iter();
        match (given.next(), given.next()) {
            (None, _) => {}
            (Some(one), None) => {
                // Terraform knows no other way to prove something.
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
        Ok(Asker { roles: [role].into(), who: who.collect(), trace: None })
    }

    fn of_token(&self, given: &HeaderValue, address: SocketAddr) -> Result<Asker, Refused> {
        let text = given.to_str().ok().filter(|text| text.len() <= AUTHORIZATION_MAX_BYTES);
        let bearer = text.and_then(|text| text.split_once(' '));
        let Some((_, token)) = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return Err(Refused::Unproven);
        };
        let tokens = self.tokens.as_ref().map(|keeper| keeper.current());
        let found = tokens.as_ref().and_then(|tokens| tokens.find(token.trim(), time::wall_ms()));
        match found {
            // A right token always counts: no guess finds one of 256 bits, and a client that sends wrong ones
            // must not lock out the others behind its proxy.
            None if self.wrong_tokens.take(address.ip(), time::now()) => Err(Refused::WrongToken),
            None => Err(Refused::TooMany),
            Some(found) => {
                let named = Id { scheme: "token".to_owned(), id: found.name.clone() };
                let who = superuser(found.roles.contains(&Role::Operator)).chain([named]).collect();
                Ok(Asker { roles: found.roles.clone(), who, trace: None })
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
        let paths = [crate::audit::text(path)];
        let (detail, missing) = ("", None);
        self.audit.record(&AuditRecord { event, op: "http", paths: &paths, detail, result, missing, client });
    }

    /// Records a request that an ACL or a rule of a lock has refused.
    fn record_denial(&self, denial: Denial, (method, path): (&Method, &str), who: (&Asker, &Visitor)) {
        let Denial { missing } = denial;
        let (event, op, result) = (Event::Denied, "http", "NoAuth");
        if self.audit.wants(event) {
            let (paths, client) = ([crate::audit::text(path)], who.0.client(who.1));
            let detail = method.as_str();
            self.audit.record(&AuditRecord { event, op, paths: &paths, detail, result, missing, client });
        }
    }

    /// Records what an operator has done, `done` with which result.
    pub(super) fn record_admin(&self, done: &AdminRequest<'_>, asker: &Asker, visitor: &Visitor) {
        let client = asker.client(visitor);
        let AdminRequest { op, path, detail, result } = *done;
        let paths = (!path.is_empty()).then(|| crate::audit::text(path));
        self.audit.record(&AuditRecord {
            event: Event::Admin,
            op,
            paths: paths.as_slice(),
            detail,
            result,
            missing: None,
            client,
        });
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

/// The password of a login without a token, as the token that it is.
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

impl Asker {
    /// As whom it reads reports.
    pub(super) fn reader(&self) -> Viewer {
        Viewer { who: self.who.clone(), session: SessionId::NONE }
    }

    /// As whom it writes, beside its address. Rules of locks name a token by its name.
    pub(super) fn who(&self) -> &[Id] {
        &self.who
    }

    fn client(&self, visitor: &Visitor) -> Client {
        Client::new(&self.who, SessionId::NONE, visitor.address).traced(self.trace.as_ref())
    }

    /// The trace that the request belongs to.
    pub(super) fn trace(&self) -> Option<&TraceParent> {
        self.trace.as_ref()
    }

    /// Whether it may do what this role allows.
    pub(super) fn may(&self, role: &Role) -> bool {
        self.roles.iter().any(|has| has.covers(role))
    }

    /// Whether it may see a report on these locks alone. What of it is shown is a matter of their ACLs.
    pub(super) fn may_see(&self, scope: &Scope) -> bool {
        self.may(&Role::Read) || self.roles.iter().any(|role| role.covers_scope(scope))
    }

    /// Whether it may have leases: it may make ephemeral znodes, or take locks.
    pub(super) fn may_have_leases(&self) -> bool {
        self.may_lock_something() || self.roles.iter().any(|role| matches!(role, Role::Znode(_)))
    }

    /// Whether it passes every ACL, which an operator does who has proven to be one.
    pub(super) fn is_super(&self) -> bool {
        rowlock_state::acl::is_super(&self.who)
    }

    /// Whether it may take any lock.
    pub(super) fn may_lock_something(&self) -> bool {
        self.roles.iter().any(|role| matches!(role, Role::Operator | Role::Lock(_)))
    }
}

/// Lets a request pass that may be made; the handlers find its [`Asker`].
pub(super) async fn check(
    State(context): State<HttpContext>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let judged = context.access.judge(&request, &visitor);
    pass(&context, judged, &visitor, request, next).await
}

/// The same at the listener for locks: a caller with any proven identity passes.
pub(super) async fn identify(
    State(context): State<HttpContext>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let judged = context.access.identify(&request, &visitor);
    pass(&context, judged, &visitor, request, next).await
}

/// The handler of the API has found that the asker may not do this.
pub(super) fn forbid(context: &HttpContext, path: &str, visitor: &Visitor, asker: &Asker) -> Response {
    context.access.count(Refused::Forbidden, visitor.address, &context.metrics);
    context.access.record(Refused::Forbidden, path, visitor, asker.trace());
    Refused::Forbidden.into_response()
}

async fn pass(
    context: &HttpContext,
    judged: Result<Asker, Refused>,
    visitor: &Visitor,
    mut request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(trace::HEADER).and_then(|value| value.to_str().ok());
    let trace = header.and_then(TraceParent::parse);
    match judged {
        Ok(asker) => {
            let asker = Asker { trace, ..asker };
            request.extensions_mut().insert(asker.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let response = next.run(request).await;
            if let Some(denial) = response.extensions().get::<Denial>() {
                context.access.record_denial(*denial, (&method, &path), (&asker, visitor));
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
            Refused::Unproven => (StatusCode::UNAUTHORIZED, "this needs a token or a client certificate"),
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
