//! Builders for requests and their parts.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Acquire, Claim, Mode};
use rowlock_proto::request::{Create, Op, SetAcl, SetData};
use rowlock_proto::{CreateMode, ErrorCode, Request, Version};

use crate::{At, Identities, Kind, PLACES_MAX, create};

/// Creates in one multi: few enough for a frame and a log entry.
const CHUNK: usize = 5_000;

pub(crate) const KIND: Kind = Kind {
    name: "",
    prepare: |_| Vec::new(),
    request: |_, _| Request::CloseSession,
    identities: Identities::NONE,
    refused: None,
    admitted: 0,
    succeeds: true,
};
pub(crate) const BAD: Option<ErrorCode> = Some(ErrorCode::BadArguments);

pub(crate) fn deep(root: &str, levels: usize) -> String {
    format!("{root}{}", "/a".repeat(levels))
}

/// Creates `root/name0`, `root/name1` and so on.
pub(crate) fn many(root: &str, name: &str, count: usize, mode: CreateMode) -> Vec<Request> {
    make((0..count).map(|at| format!("{root}/{name}{at}")), mode)
}

fn make(paths: impl Iterator<Item = String>, mode: CreateMode) -> Vec<Request> {
    let ops: Vec<Op> = paths.map(|path| Op::Create(create(&path, mode))).collect();
    ops.chunks(CHUNK).map(|some| Request::Multi(some.to_vec())).collect()
}

pub(crate) fn chain(root: &str, levels: usize) -> Vec<Request> {
    make((1..=levels).map(|level| deep(root, level)), CreateMode::Persistent)
}

pub(crate) fn one(path: &str) -> Request {
    Request::Create2(create(path, CreateMode::Persistent))
}

pub(crate) fn with_data(path: &str, data: usize, mode: CreateMode) -> Create {
    Create { data: Some(Bytes::from(vec![7; data])), ..create(path, mode) }
}

pub(crate) fn set(path: &str, data: usize) -> Request {
    let data = Some(Bytes::from(vec![7; data]));
    Request::SetData(SetData { path: path.to_owned(), data, version: Version::ANY })
}

pub(crate) fn user(number: usize) -> Acl {
    let id = Id { scheme: "digest".to_owned(), id: format!("user{number}:{}", "h".repeat(28)) };
    Acl { perms: perms::ALL, id }
}

pub(crate) fn set_acl(path: &str, acl: impl Iterator<Item = Acl>) -> Request {
    Request::SetAcl(SetAcl { path: path.to_owned(), acl: Some(acl.collect()), version: Version::ANY })
}

pub(crate) fn multi(count: usize, op: impl Fn(usize) -> Op) -> Request {
    Request::Multi((0..count).map(op).collect())
}

pub(crate) fn check(path: &str) -> Op {
    Op::Check { path: path.to_owned(), version: Version::ANY }
}

/// Creates a znode with `auth` entries, one for each of these permissions: the server expands each to all
/// proven identities.
pub(crate) fn by_auth(root: &str, perms: &[i32]) -> Op {
    let entry = |perms: &i32| Acl { perms: *perms, id: Id { scheme: "auth".to_owned(), id: String::new() } };
    sequential(root, perms.iter().map(entry).collect())
}

pub(crate) fn own_list(root: &str, at: usize) -> Op {
    sequential(root, [user(at % 4_096)].into())
}

fn sequential(root: &str, acl: Arc<[Acl]>) -> Op {
    Op::Create(Create { acl: Some(acl), ..create(&format!("{root}/e"), CreateMode::PersistentSequential) })
}

pub(crate) fn places(count: usize, lock: impl Fn(usize) -> String) -> Request {
    Request::Acquire((0..count).map(|at| Acquire::exclusive(lock(at), "p-")).collect())
}

pub(crate) fn labelled(root: &str, data: usize) -> Acquire {
    Acquire { data: Some(Bytes::from(vec![7; data])), ..Acquire::exclusive(format!("{root}/l"), "p-") }
}

pub(crate) fn hold(root: &str) -> Vec<Request> {
    vec![places(PLACES_MAX, |at| format!("{root}/l{at}"))]
}

/// Returns a claim that holds its lock if `longer` is 0; otherwise the path has `longer` additional zeros.
pub(crate) fn claim(at: &At<'_>, number: usize, longer: usize) -> Claim {
    let path = format!("{}/l{number}/p-0000000000{}", at.root, "0".repeat(longer));
    Claim { path: path.into(), token: at.token }
}

/// Creates one holder, and `count` waiting readers.
pub(crate) fn readers(root: &str, count: usize) -> Vec<Request> {
    let lock = || format!("{root}/l0");
    let reader = |at| Acquire { mode: Mode::Shared, ..Acquire::exclusive(lock(), format!("r{at}-")) };
    let readers = (0..count).map(|at| Request::Acquire([reader(at)].into()));
    [Request::Acquire([Acquire::exclusive(lock(), "p-")].into())].into_iter().chain(readers).collect()
}
