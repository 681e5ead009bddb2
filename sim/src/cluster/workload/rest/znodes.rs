//! Znodes by HTTP: writes with an `Idempotency-Key`, repeated at several nodes until an answer, and writes
//! that take effect only while a token holds its lock. The checkers of all clients' writes judge them.
//!
//! A write without an answer may still run, so the lease ends, and with it the order of its session's writes.

use rowlock_env::{rng, time};
use rowlock_proto::{CreateMode, ErrorCode, FencingToken, SessionId, Stat, Version, Zxid};
use serde_json::Value;

use super::super::caller::data;
use super::super::chance::{between, chance};
use super::super::life::Place;
use super::Strays;
use super::attempt::{ANSWERED_WITHIN, Attempt, Call, EACH, send_late};
use super::call::Asking;
use super::lease::Lease;
use crate::history::client::{Answer, CallId, DATA, Failure, Op, ReadKind, fenced_path};

/// Percentage of writes that are sent again after the answer: the second answer is the first.
const REPEATED_PERCENT: u64 = 30;
/// Percentage of writes that reuse the previous write's key, if that key had another method or path.
const REUSED_PERCENT: u64 = 40;
/// Percentage of writes with a fence that are deleted again, with the same fence.
const DELETED_PERCENT: u64 = 80;

/// Key of the previous write, and the requests that had this key.
pub(super) type Key = (String, Vec<String>);

/// Changes a znode. Returns false if the write may still run, so that the lease must end.
pub(super) async fn run(place: &Place, lease: &Lease, strays: &mut Strays) -> bool {
    let writer = Writer { place, lease, fence: None };
    let path = format!("{DATA}/znode{}", between(1, place.caller.profile().znodes));
    let version = match chance(50) {
        true => Version::ANY,
        false => writer.version(&path).await.unwrap_or(Version(0)),
    };
    match between(0, 9) {
        0..6 => {
            let set = |call| Op::Set { path: path.clone(), data: data(call, 0), version };
            match writer.write(set, strays).await {
                Err(Failure::Refused(ErrorCode::NoNode)) => writer.create(&path, strays).await.is_known(),
                result => result.is_known(),
            }
        }
        6..8 => writer.write(|_| Op::Delete { path, version }, strays).await.is_known(),
        _ => writer.create(&path, strays).await.is_known(),
    }
}

/// Creates a znode with the token of the attempt's lock as its fence, and mostly deletes the znode again: all
/// takes effect only while the token holds the lock. Returns as [`run`].
pub(super) async fn behind_fence(attempt: &Attempt<'_>, token: FencingToken, strays: &mut Strays) -> bool {
    let fence = format!("\tRowlock-Fence: {};{token}", attempt.place.caller.lock_path(attempt.lock));
    let writer = Writer { place: attempt.place, lease: attempt.lease, fence: Some(fence) };
    let path = fenced_path(attempt.lock, token);
    let created = writer.create(&path, strays).await;
    if created.is_ok() && chance(DELETED_PERCENT) {
        let delete = |_| Op::Delete { path, version: Version::ANY };
        return writer.write(delete, strays).await.is_known();
    }
    created.is_known()
}

trait Known {
    /// Returns whether the outcome is known.
    fn is_known(&self) -> bool;
}

impl Known for Result<Answer, Failure> {
    fn is_known(&self) -> bool {
        *self != Err(Failure::Unknown)
    }
}

struct Writer<'a> {
    place: &'a Place,
    lease: &'a Lease,
    /// Header with the lock and the token that must hold the lock.
    fence: Option<String>,
}

impl Writer<'_> {
    /// Creates a znode, after its parent if the parent is missing.
    async fn create(&self, path: &str, strays: &mut Strays) -> Result<Answer, Failure> {
        let create = |path: &str| {
            let (path, mode) = (path.to_owned(), CreateMode::Persistent);
            move |call| Op::Create { path, data: data(call, 0), mode }
        };
        let created = self.write(create(path), strays).await;
        if created != Err(Failure::Refused(ErrorCode::NoNode)) {
            return created;
        }
        let parent = self.write(create(DATA), strays).await;
        if parent.is_known() { self.write(create(path), strays).await } else { parent }
    }

    /// Repeats a write until an answer, and reports the call.
    async fn write(&self, make: impl FnOnce(CallId) -> Op, strays: &mut Strays) -> Result<Answer, Failure> {
        let (call, op) = Call::next(self.lease, make);
        let asking = self.asking(&op, strays);
        send_late(&asking, strays);
        let result = match asking.until(time::now() + ANSWERED_WITHIN, EACH).await {
            Some((status, document)) => outcome(&op, status, &document),
            None => Err(Failure::Unknown),
        };
        call.end(result.clone());
        if chance(REPEATED_PERCENT)
            && let Some((status, document)) = asking.once(EACH).await
            && let again = outcome(&op, status, &document)
            && again.is_known()
        {
            // A fence whose token has lost its lock hides an earlier refusal.
            let is_same = again == result || result.is_err() && again == Err(Failure::NotDone);
            assert!(is_same || !result.is_known(), "{op:?} gets {result:?}, and again {again:?}");
        }
        result
    }

    fn asking(&self, op: &Op, strays: &mut Strays) -> Asking {
        let (method, path, data, version) = match op {
            Op::Create { path, data, .. } => ("POST", path, data.as_ref(), Version::ANY),
            Op::Set { path, data, version } => ("PUT", path, data.as_ref(), *version),
            Op::Delete { path, version } => ("DELETE", path, None, *version),
            other => unreachable!("a write of a znode: {other:?}"),
        };
        let request = format!("{method} /v1/znodes{path}");
        let key = key(&request, strays);
        let mut head = format!("{request}\tRowlock-Lease: {}\tIdempotency-Key: {key}", self.lease.secret);
        if version != Version::ANY {
            head.push_str(&format!("\tIf-Match: \"{}\"", version.0));
        }
        head.push_str(self.fence.as_deref().unwrap_or_default());
        let text = data.map(|data| Value::String(String::from_utf8_lossy(data).into_owned()));
        let asking = Asking::new(&self.place.caller.profile().membership, head, text.unwrap_or_default());
        Asking { keeps_refusals: true, ..asking }
    }

    /// Reads the version of a znode after a sync. Returns `None` without a reply, or without the znode.
    async fn version(&self, path: &str) -> Option<Version> {
        let read = |_| Op::Read { kind: ReadKind::Exists, path: path.to_owned(), watch: None, synced: true };
        let (call, _) = Call::next(self.lease, read);
        let membership = &self.place.caller.profile().membership;
        let question = format!("/v1/znodes{path}?view=stat");
        let (status, document) = Asking::get(membership, &question).once(EACH).await?;
        let stat = (status == 200).then(|| stat(&document["stat"]));
        assert!(stat.is_some() || status == 404, "{question} gets {status} {document}");
        call.end(Ok(Answer::Exists(stat)));
        stat.map(|stat| stat.version)
    }
}

/// Returns a name for a write: sometimes the previous write's, for another request.
fn key(request: &str, strays: &mut Strays) -> String {
    let known = strays.key.take().filter(|(_, all)| !all.iter().any(|one| one == request));
    let (key, mut all) = known
        .filter(|_| chance(REUSED_PERCENT))
        .unwrap_or_else(|| (format!("{:016x}", rng::below(u64::MAX)), Vec::new()));
    all.push(request.to_owned());
    strays.key = Some((key.clone(), all));
    key
}

/// Returns the outcome that an answer tells.
fn outcome(op: &Op, status: u16, document: &Value) -> Result<Answer, Failure> {
    let detail = document["detail"].as_str().unwrap_or_default();
    let refused = |code| Err(Failure::Refused(code));
    match (op, status) {
        (Op::Create { .. }, 201) => {
            let path = document["path"].as_str().unwrap_or_default().to_owned();
            Ok(Answer::Created { path, stat: stat(&document["stat"]) })
        }
        (Op::Set { .. }, 200) => Ok(Answer::Set(stat(&document["stat"]))),
        (Op::Delete { .. }, 204) => Ok(Answer::Deleted),
        (_, 412) if document["stale"] == true && !detail.contains("earlier copy") => Err(Failure::NotDone),
        (_, 412) if document["stale"] == true => Err(Failure::Unknown),
        (_, 412) => refused(ErrorCode::BadVersion),
        (_, 409) if detail.contains("children") => refused(ErrorCode::NotEmpty),
        (_, 409) => refused(ErrorCode::NodeExists),
        (_, 404) if !detail.contains("lease") => refused(ErrorCode::NoNode),
        // The lease is over, or belongs to a client of another cluster: an earlier copy may have run.
        // Another copy may have run before a refusal for lack of room.
        (_, 403 | 404 | 429 | 503) => Err(Failure::Unknown),
        _ => panic!("{op:?} gets {status} {document}"),
    }
}

fn stat(document: &Value) -> Stat {
    let number = |name: &str| {
        let field = &document[name];
        let number = field.as_i64().or_else(|| field.as_str()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in {document}"))
    };
    let version = |name| Version(i32::try_from(number(name)).expect("a version"));
    let owner = document["ephemeral_owner"].as_str().unwrap_or("0x0").trim_start_matches("0x");
    Stat {
        czxid: Zxid(number("czxid")),
        mzxid: Zxid(number("mzxid")),
        ctime_ms: number("ctime_ms"),
        mtime_ms: number("mtime_ms"),
        version: version("version"),
        cversion: version("cversion"),
        aversion: version("aversion"),
        ephemeral_owner: SessionId(i64::from_str_radix(owner, 16).expect("a session")),
        data_length: version("data_length").0,
        num_children: version("num_children").0,
        pzxid: Zxid(number("pzxid")),
    }
}
