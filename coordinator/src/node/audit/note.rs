//! Facts that the audit log needs from a request and its client, collected before the request is answered.

use std::net::SocketAddr;

use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::ASK_BY_MAX_BYTES;
use rowlock_proto::request::{Op, ReadOp};
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, Request, Right, SessionId};
use rowlock_state::acl;
use rowlock_state::rules::{AccessRule, RULES_PATH, Rules};
use serde::Serialize;

use super::{Audit, AuditRecord, Event, OK};
use crate::node::trace::TraceParent;

/// Maximum recorded paths of one request. A longer list ends in `…`.
const PATHS_MAX: usize = 8;
/// Path of the first report request of a backup.
const BACKUP: &str = "/v1/backup";
/// Maximum recorded entries of an ACL.
const ACLS_MAX: usize = 16;

/// A request between arrival and answer, with the fields of its audit record.
#[derive(Debug)]
pub(crate) struct Note {
    event: Option<Event>,
    op: &'static str,
    paths: Vec<String>,
    detail: String,
    client: Client,
}

impl Note {
    /// Collects the fields of a request. Returns `None` if no outcome of the request would be recorded.
    pub fn of(request: &Request, client: impl FnOnce() -> Client, audit: &Audit) -> Option<Box<Note>> {
        let request = untagged(request);
        // The node's log contains acts of operators even without an audit log.
        let is_admin = event(request) == Some(Event::Admin);
        if !audit.is_on() && !is_admin {
            return None;
        }
        if matches!(request, Request::Ping | Request::Auth { .. } | Request::Sasl(_)) {
            return None;
        }
        let event = event(request).filter(|event| audit.wants(*event) || is_admin);
        if event.is_none() && !audit.wants(Event::Denied) {
            return None;
        }
        let all = paths(request);
        let mut paths: Vec<String> = all.iter().take(PATHS_MAX).map(|path| text(path)).collect();
        paths.extend((all.len() > PATHS_MAX).then(|| CUT.to_string()));
        let detail = text(&detail(request));
        Some(Box::new(Note { event, op: request.opcode().as_str(), paths, detail, client: client() }))
    }

    /// Records the request with its outcome.
    pub fn answered(&self, body: Option<&Response>, err: Option<ErrorCode>, audit: &Audit) {
        let refusal = err.or_else(|| match body {
            Some(Response::Multi(results)) => results.iter().find_map(error_of),
            _ => None,
        });
        let is_denied = refusal.is_some_and(is_denial) && audit.wants(Event::Denied);
        debug_assert!(self.event.is_some() || audit.wants(Event::Denied), "a note is of something");
        let event = if is_denied { Some(Event::Denied) } else { self.event };
        let Some(event) = event else { return };
        let missing = match refusal {
            Some(ErrorCode::NoRight(right)) => Some(right),
            _ => None,
        };
        let result = match refusal {
            None => OK.to_owned(),
            Some(ErrorCode::NoRight(_)) => format!("{:?}", ErrorCode::NoAuth),
            Some(code) => format!("{code:?}"),
        };
        self.write(event, (&result, missing), audit);
    }

    /// Records the request with the result `unknown`: the reply did not arrive, or the client stopped
    /// waiting, so the request may have been executed.
    pub fn unanswered(&self, audit: &Audit) {
        if let Some(event) = self.event {
            self.write(event, ("unknown", None), audit);
        }
    }

    fn write(&self, event: Event, (result, missing): (&str, Option<Right>), audit: &Audit) {
        let Note { op, paths, detail, client, .. } = self;
        audit.record(&AuditRecord { event, op, paths, detail, result, missing, client: client.clone() });
    }
}

/// Returns whether the code is a refusal for lack of a permission or of authentication.
fn is_denial(code: ErrorCode) -> bool {
    use ErrorCode as E;
    matches!(code, E::NoAuth | E::NoRight(_) | E::AuthFailed | E::SessionClosedRequireSaslAuth)
}

fn error_of(result: &OpResult) -> Option<ErrorCode> {
    match result {
        // A multi reports this code for operations that were skipped after a failed one.
        OpResult::Error(code) => code.filter(|code| *code != ErrorCode::RuntimeInconsistency),
        _ => None,
    }
}

fn untagged(request: &Request) -> &Request {
    match request {
        Request::Tagged { request, .. } => untagged(request),
        other => other,
    }
}

fn event(request: &Request) -> Option<Event> {
    match request {
        // The rules of locks belong to operators.
        Request::Create(_)
        | Request::Create2(_)
        | Request::SetData(_)
        | Request::Delete { .. }
        | Request::Multi(_)
            if paths(request).contains(&RULES_PATH) =>
        {
            Some(Event::Admin)
        }
        Request::SetAcl(_) => Some(Event::Acl),
        Request::Reconfig { .. } | Request::ForceRelease(_) | Request::Operate(_) => Some(Event::Admin),
        Request::Ask(ask) => Some(if ask.within_ms == 0 { Event::Locks } else { Event::Admin }),
        // Only the first report of a backup: recording each piece would add a line per piece.
        Request::Report(what) if what == BACKUP => Some(Event::Admin),
        Request::Acquire(_) | Request::Release(_) | Request::Convert { .. } | Request::Abandon(_) => {
            Some(Event::Locks)
        }
        Request::Create(_)
        | Request::Create2(_)
        | Request::CreateContainer(_)
        | Request::CreateTtl(..)
        | Request::Delete { .. }
        | Request::SetData(_)
        | Request::Multi(_) => Some(Event::Writes),
        _ => None,
    }
}

pub(crate) fn paths(request: &Request) -> Vec<&str> {
    match request {
        Request::Create(create)
        | Request::Create2(create)
        | Request::CreateContainer(create)
        | Request::CreateTtl(create, _) => vec![&create.path],
        Request::Delete { path, .. }
        | Request::Check { path, .. }
        | Request::CheckWatches { path, .. }
        | Request::RemoveWatches { path, .. }
        | Request::AddWatch { path, .. }
        | Request::GetAcl(path)
        | Request::Sync(path)
        | Request::GetEphemerals(path)
        | Request::GetAllChildrenNumber(path)
        | Request::Report(path)
        | Request::Operate(path) => vec![path],
        Request::Exists(watch)
        | Request::GetData(watch)
        | Request::GetChildren(watch)
        | Request::GetChildren2(watch) => vec![&watch.path],
        Request::SetData(set) => vec![&set.path],
        Request::SetAcl(set) => vec![&set.path],
        Request::Multi(ops) => ops.iter().map(path_of).collect(),
        Request::MultiRead(ops) => {
            ops.iter().map(|(ReadOp::GetData(path) | ReadOp::GetChildren(path))| path.as_str()).collect()
        }
        Request::Acquire(all) => all.iter().map(|one| &*one.lock).collect(),
        Request::Abandon(all) => all.iter().map(|one| one.lock.as_str()).collect(),
        Request::Release(claims) | Request::Verify(claims) => {
            claims.iter().map(|claim| &*claim.path).collect()
        }
        Request::Convert { claim, .. } | Request::ForceRelease(claim) => vec![&claim.path],
        Request::Ask(ask) => vec![&ask.lock],
        Request::Tagged { .. }
        | Request::Ping
        | Request::Reconfig { .. }
        | Request::Auth { .. }
        | Request::SetWatches(_)
        | Request::SetWatches2(_)
        | Request::Sasl(_)
        | Request::WhoAmI
        | Request::CloseSession
        | Request::SessionOptions(_) => Vec::new(),
    }
}

fn path_of(op: &Op) -> &str {
    match op {
        Op::Create(create) | Op::Create2(create) | Op::CreateContainer(create) | Op::CreateTtl(create, _) => {
            &create.path
        }
        Op::Delete { path, .. } | Op::Check { path, .. } => path,
        Op::SetData(set) => &set.path,
    }
}

/// Returns the first lock rules in one line, without password hashes.
fn rules_text(data: Option<&[u8]>) -> String {
    let text = String::from_utf8_lossy(data.unwrap_or_default());
    let Ok(rules) = Rules::parse(&text) else { return "malformed".to_owned() };
    let one = |rule: AccessRule| format!("{} {} {}", rule.rights, rule.pattern, who(&[rule.who]).concat());
    rules.iter().take(ACLS_MAX).map(one).collect::<Vec<_>>().join("; ")
}

fn detail(request: &Request) -> String {
    match request {
        Request::Reconfig { joining, leaving, new_members, .. } => {
            let parts = [("joining", joining), ("leaving", leaving), ("members", new_members)];
            let said = parts.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
            said.collect::<Vec<_>>().join(" ")
        }
        Request::ForceRelease(claim) => format!("token={}", claim.token),
        Request::SetData(set) if set.path == RULES_PATH => rules_text(set.data.as_deref()),
        Request::Create(create) | Request::Create2(create) if create.path == RULES_PATH => {
            rules_text(create.data.as_deref())
        }
        Request::Ask(ask) => format!("within_ms={} reason={}", ask.within_ms, ask.reason),
        Request::SetAcl(set) => {
            let acl = set.acl.iter().flat_map(|all| all.iter()).take(ACLS_MAX);
            let one = |acl: &Acl| format!("{}={:#x}", who(std::slice::from_ref(&acl.id)).concat(), acl.perms);
            acl.map(one).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// Maximum recorded bytes of a client's text. A longer text is cut and ends in `…`.
const TEXT_MAX_BYTES: usize = 1_024;
/// Maximum recorded identities. A longer list ends in `…`.
const IDENTITIES_MAX: usize = 8;
const CUT: char = '…';

/// Identity of a client for audit records, bounded in length: text from a client must not fill the disk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Client {
    /// Identities as `scheme:id`; for a digest only the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub who: Vec<String>,
    /// Session id in the form of all logs and reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Trace context of the request. Only HTTP requests carry one.
    #[serde(rename = "traceparent", skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl Client {
    pub fn new(identities: &[Id], session: SessionId, address: SocketAddr) -> Client {
        let session = (session != SessionId::NONE).then(|| session.to_string());
        Client { who: who(identities), session, address: Some(address), trace: None }
    }

    /// Sets the trace context.
    pub fn traced(self, trace: Option<&TraceParent>) -> Client {
        Client { trace: trace.map(ToString::to_string), ..self }
    }

    /// Returns whether a remote client has no identity but its IP address.
    pub fn has_proven_nothing(&self) -> bool {
        self.address.is_some() && self.who.iter().all(|one| one.starts_with("ip:"))
    }
}

pub fn who(identities: &[Id]) -> Vec<String> {
    let mut all: Vec<String> = identities
        .iter()
        .take(IDENTITIES_MAX)
        .map(|Id { scheme, id }| {
            let shown = id.split(':').next().filter(|_| scheme == "digest").unwrap_or(id);
            if shown.is_empty() { scheme.clone() } else { text(&format!("{scheme}:{shown}")) }
        })
        .collect();
    all.extend((identities.len() > IDENTITIES_MAX).then(|| CUT.to_string()));
    all
}

/// Returns the name of a client that asks for a lock, for display to the lock's holders: the authenticated
/// name, else the address, followed by the client's own label. At most [`ASK_BY_MAX_BYTES`].
pub(crate) fn asker(identities: &[Id], label: &str) -> String {
    let mut text = acl::name_of(identities);
    if !label.is_empty() {
        text = if text.is_empty() { label.to_owned() } else { format!("{text} ({label})") };
    }
    let end = (0..=ASK_BY_MAX_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// Cuts a client's text to the recorded length.
pub(crate) fn text(of: &str) -> String {
    if of.len() <= TEXT_MAX_BYTES {
        return of.to_owned();
    }
    let end = (0..=TEXT_MAX_BYTES).rev().find(|at| of.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{CUT}", &of[..end])
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Id;
    use rowlock_proto::request::{Create, SetAcl};
    use rowlock_proto::{SessionId, Version};
    use tokio::sync::mpsc;

    use super::*;
    use crate::node::audit::tests::{audit, next};

    fn set_acl(path: &str) -> Request {
        let acl = Acl { perms: 1, id: Id { scheme: "digest".to_owned(), id: "u:hash".to_owned() } };
        Request::SetAcl(SetAcl { path: path.to_owned(), acl: Some([acl].into()), version: Version::ANY })
    }

    fn alice() -> Client {
        let id = Id { scheme: "x509".to_owned(), id: "CN=alice".to_owned() };
        Client::new(&[id], SessionId(7), "10.0.0.1:5".parse().unwrap())
    }

    fn written(request: &Request, result: Result<&Response, ErrorCode>) -> Option<serde_json::Value> {
        let (body, err) = (result.ok(), result.err());
        let (audit, mut lines) = audit(&[Event::Acl, Event::Admin, Event::Denied]);
        Note::of(request, alice, &audit)?.answered(body, err, &audit);
        next(&mut lines)
    }

    #[test]
    fn a_changed_acl_is_recorded_without_password_hashes() {
        let line = written(&set_acl("/a"), Ok(&Response::Empty)).unwrap();
        assert_eq!((&line["event"], &line["op"]), (&"acl".into(), &"setACL".into()));
        assert_eq!((&line["paths"][0], &line["result"]), (&"/a".into(), &"ok".into()));
        assert_eq!(line["who"], serde_json::json!(["x509:CN=alice"]));
        assert_eq!(line["detail"], "digest:u=0x1");
        assert_eq!(line["address"], "10.0.0.1:5");
    }

    #[test]
    fn without_an_audit_log_only_operators_acts_are_logged() {
        let off = Audit::default();
        let operate = Request::Operate("/v1/drain?node=2&on=true".to_owned());
        assert!(Note::of(&operate, alice, &off).is_some());
        assert!(Note::of(&set_acl("/a"), alice, &off).is_none());
    }

    #[test]
    fn a_backup_is_recorded_once_and_other_reports_are_not() {
        let ask = |what: &str| {
            written(&Request::Report(what.to_owned()), Ok(&Response::Report(String::new())))
                .map(|line| (line["event"].clone(), line["paths"][0].clone()))
        };
        assert_eq!(ask("/v1/backup"), Some(("admin".into(), "/v1/backup".into())));
        assert_eq!((ask("/v1/backup?backup=1&offset=0"), ask("/v1/locks")), (None, None));
    }

    #[test]
    fn operations_and_refused_operations_are_recorded() {
        let drain = Request::Operate("/v1/drain?node=2&on=true".to_owned());
        let line = written(&drain, Ok(&Response::Report(String::new()))).unwrap();
        assert_eq!((&line["event"], &line["op"]), (&"admin".into(), &"operate".into()));
        assert_eq!(line["paths"][0], "/v1/drain?node=2&on=true");
        let line = written(&drain, Err(ErrorCode::NoAuth)).unwrap();
        assert_eq!((&line["event"], &line["result"]), (&"denied".into(), &"NoAuth".into()));
    }

    #[test]
    fn missing_permissions_in_multis_and_tags_are_denials() {
        let create = || Create { path: "/x".to_owned(), data: None, acl: None, flags: 0 };
        let tagged = Request::Tagged { id: 1, acked: 0, request: Box::new(Request::Create(create())) };
        let line = written(&tagged, Err(ErrorCode::NoAuth)).unwrap();
        assert_eq!(
            (&line["event"], &line["op"], &line["result"]),
            (&"denied".into(), &"create".into(), &"NoAuth".into())
        );
        let failed = Response::Multi(vec![
            OpResult::Error(None),
            OpResult::Error(Some(ErrorCode::NoAuth)),
            OpResult::Error(Some(ErrorCode::RuntimeInconsistency)),
        ]);
        let multi = Request::Multi(vec![Op::Create(create()), Op::Create(create())]);
        let line = written(&multi, Ok(&failed)).unwrap();
        assert_eq!((&line["event"], &line["paths"]), (&"denied".into(), &serde_json::json!(["/x", "/x"])));
        // The test's audit log does not select writes, and `NodeExists` is no denial.
        assert_eq!(written(&tagged, Err(ErrorCode::NodeExists)), None);
        assert_eq!(written(&tagged, Ok(&Response::Empty)), None);
    }

    #[test]
    fn any_znode_name_yields_one_record_line_of_bounded_length() {
        let hostile = "/a\n{\"event\":\"acl\"}\r\u{2028}\0\"\\".to_owned();
        let (audit, mut lines) = audit(&[Event::Acl]);
        for path in [hostile.clone(), format!("/{}", "é".repeat(100_000))] {
            Note::of(&set_acl(&path), alice, &audit).unwrap().answered(Some(&Response::Empty), None, &audit);
            let text = lines.try_recv().unwrap();
            assert!(text.ends_with('\n') && text.lines().count() == 1 && text.len() < 4_096, "{text}");
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            let shown = line["paths"][0].as_str().unwrap();
            assert!(shown == path || path.starts_with(shown.trim_end_matches(CUT)), "{shown}");
        }
        assert_eq!(lines.try_recv(), Err(mpsc::error::TryRecvError::Empty));
    }

    #[test]
    fn an_askers_name_prefers_proven_identities_and_is_bounded() {
        let id = |scheme: &str, id: &str| Id { scheme: scheme.to_owned(), id: id.to_owned() };
        let ip = || id("ip", "10.0.0.1");
        let (name, digest) = (id("x509", "CN=a"), id("digest", "bob:hash"));
        for (who, label, expected) in [
            (vec![ip()], "", "ip:10.0.0.1"),
            (vec![ip()], "deploy", "ip:10.0.0.1 (deploy)"),
            (vec![ip(), id("super", ""), name], "", "x509:CN=a"),
            (vec![ip(), digest], "d", "digest:bob (d)"),
            (vec![id("super", "")], "", "super"),
            (Vec::new(), "d", "d"),
        ] {
            assert_eq!(asker(&who, label), expected);
        }
        let long = asker(&[id("x509", &"é".repeat(200))], &"l".repeat(9_000));
        assert!(long.len() <= ASK_BY_MAX_BYTES && long.starts_with("x509:é"), "{long}");
    }
}
