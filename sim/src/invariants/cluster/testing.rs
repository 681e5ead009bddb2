//! Facts for the tests of the checkers.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::{CreateMode, NodeId, SessionId, Stat, Version, Zxid};
use rowlock_world::time::Nanos;

use crate::history::client::{
    Answer, CallId, ClientFact, ClientId, Failure, Logged, Op, ReadKind, Znode, ZnodeChange,
};
use crate::history::node::{NodeFact, Position};
use crate::history::{Fact, Index};

pub(super) fn node_at(ms: u64, who: u64, what: NodeFact) -> Fact {
    Fact::Node { node: NodeId(who), at: Nanos::from_millis(ms), what }
}

pub(super) fn node(who: u64, what: NodeFact) -> Fact {
    node_at(0, who, what)
}

pub(super) fn position((term, leader, index): (u64, u64, u64)) -> Position {
    Position { term, leader: NodeId(leader), index: Index(index) }
}

pub(super) fn appended(who: u64, entry: (u64, u64, u64), hash: u64) -> Fact {
    node(who, NodeFact::Appended { entry: position(entry), hash })
}

pub(in crate::invariants) fn applied(who: u64, entry: (u64, u64, u64), hash: u64) -> Fact {
    node(who, NodeFact::Applied { entry: position(entry), hash, digest: 0 })
}

pub(in crate::invariants) fn installed(who: u64, entry: (u64, u64, u64), digest: u64) -> Fact {
    node(who, NodeFact::Installed { entry: Some(position(entry)), digest })
}

pub(super) fn truncated(who: u64, after: u64) -> Fact {
    node(who, NodeFact::Truncated { after: Index(after) })
}

pub(super) fn client_at(ms: u64, who: usize, what: ClientFact) -> Fact {
    Fact::Client { client: ClientId(who), at: Nanos::from_millis(ms), what }
}

pub(super) fn client(who: usize, what: ClientFact) -> Fact {
    client_at(0, who, what)
}

/// A call of the client `who` in the session of the same number.
pub(super) fn invoked(who: usize, call: u64, op: Op) -> Fact {
    client(who, ClientFact::Invoked { call: CallId(call), session: SessionId(who as i64), op: Arc::new(op) })
}

pub(super) fn returned(who: usize, call: u64, result: Result<Answer, Failure>) -> Fact {
    client(who, ClientFact::Returned { call: CallId(call), result })
}

pub(super) fn create(path: &str) -> Op {
    Op::Create { path: path.to_owned(), data: data("new"), mode: CreateMode::Persistent }
}

pub(super) fn set(path: &str, text: &str) -> Op {
    Op::Set { path: path.to_owned(), data: data(text), version: Version::ANY }
}

pub(super) fn delete(path: &str) -> Op {
    Op::Delete { path: path.to_owned(), version: Version::ANY }
}

pub(super) fn get(path: &str, synced: bool) -> Op {
    Op::Read { kind: ReadKind::Data, path: path.to_owned(), watch: None, synced }
}

pub(super) fn data(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

/// Builds the Stat of a znode created by `czxid` and changed by `mzxid` into this version.
pub(super) fn stat(czxid: i64, mzxid: i64, version: i32) -> Stat {
    Stat { czxid: Zxid(czxid), mzxid: Zxid(mzxid), version: Version(version), ..Stat::default() }
}

pub(super) fn logged(who: usize, zxid: i64, op: Op, result: Result<Answer, Failure>) -> Fact {
    Fact::Logged(Arc::new(Logged { zxid: Zxid(zxid), session: SessionId(who as i64), op, result }))
}

pub(super) fn znode(zxid: i64, path: &str, change: ZnodeChange, now: Option<(&str, Stat)>) -> Fact {
    let now = now.map(|(text, stat)| (data(text), stat));
    Fact::Znode(Arc::new(Znode { zxid: Zxid(zxid), path: path.to_owned(), change, now }))
}
