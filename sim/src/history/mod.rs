//! Facts of a run, as seen from outside. Checkers use facts and nothing else, so a test can give a checker a
//! history that no correct system would produce.
//!
//! [`crate::fact_recorder`] makes the facts about the log; clients and nodes report the facts in [`client`]
//! and [`node`], with true times.

pub mod access;
mod book;
pub mod client;
pub mod node;
mod node_log;
mod quorum;
#[cfg(test)]
pub mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::lock::Mode;
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{Acl, FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{EndReason, SessionEnd};
use rowlock_world::time::Nanos;

pub use book::Book;
use client::{ClientFact, ClientId, Logged, Znode};
use node::{NodeFact, Position};
pub use node_log::NodeLog;
pub use quorum::Quorum;

/// Position in the log, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index(pub u64);

/// Time of the log's clock (`coordinator/raft/consensus/src/log_clock.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock(pub usize);

/// Origin of a replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Applied entry by entry.
    Apply,
    /// Installed from another replica's snapshot.
    Install,
}

/// Bound on the distance of every leader's clock, at all times, from one clock that runs at the simulation's
/// rate.
pub const CLOCK_SPREAD_MS: i64 = 50;

/// Time for which all members must run the new release before the leader raises the cluster's version. Short
/// enough to fit between faults.
pub const HEALTH: Duration = Duration::from_secs(2);

/// An event of a run. Facts about the log are reported once, in log order; all facts are reported in time
/// order.
///
/// In a cluster, an entry's facts are reported when the first node has applied the entry, after that node's
/// [`NodeFact::Applied`] and before any reply that depends on the entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The log opened a session.
    SessionOpened { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The log moved a session to another connection.
    SessionAttached { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The log ended a session.
    SessionEnded { session: SessionId, end: SessionEnd, at: Millis },
    /// A position entered a lock's queue.
    Queued { lock: Lock, token: FencingToken, session: SessionId, mode: Mode },
    /// The log granted a lock.
    Entitled { lock: Lock, token: FencingToken, session: SessionId, zxid: Zxid, at: Millis },
    /// A holder continues in another mode, at the same position.
    Converted { lock: Lock, token: FencingToken, mode: Mode },
    /// A position left a lock's queue, for this reason.
    Left { lock: Lock, token: FencingToken, why: EndReason },
    /// A holder has had a question since `asked` by the log's clock.
    Questioned { lock: Lock, token: FencingToken, asked: Millis },
    /// Entry of event streams and histories about a change of any lock.
    LockEvent(Arc<HistoryEntry>),
    /// The log applied a write of [`client::DATA`]. A repeated numbered write is not reported again.
    Logged(Arc<Logged>),
    /// A znode below [`client::DATA`], or its list of children, has changed.
    Znode(Arc<Znode>),
    /// The rules of locks have this text from now on. An empty text: there are no rules.
    Rules { zxid: Zxid, text: String },
    /// A znode whose ACL may be closed has this ACL from now on; `None`: the znode is gone.
    Acl { zxid: Zxid, path: String, acl: Option<Vec<Acl>> },
    /// The log has raised the cluster's version to this number, or has held the version.
    Version { number: u16, is_held: bool },
    /// All facts of a command have been reported.
    Committed { zxid: Zxid },
    /// The state has another value than the oracle, or the oracle's book breaks this promise.
    Disagreed { promise: &'static str, what: String },
    /// A new cluster begins with the state of the old cluster.
    NewLife(Arc<NewLife>),

    /// A replica had applied entries up to `index` and then had this digest.
    Replica { node: NodeId, index: Index, digest: u64, origin: Origin },
    /// All faults have ended, and all clients and nodes had time to finish.
    Settled,

    /// A client reports an action or an observation.
    Client { client: ClientId, at: Nanos, what: ClientFact },
    /// An observer reports a fact about a node.
    Node { node: NodeId, at: Nanos, what: NodeFact },
    /// The state of the world, and with it the service that the cluster owes, has changed; `None`: no quorum
    /// is connected.
    Connected { at: Nanos, now: Option<Arc<Connected>> },
    /// An operator knows that the cluster's version is held; `false`: the operator asks for the new version.
    Operated { at: Nanos, holds: bool },
    /// A probe that knows only this node has requested a session, a write and a lock, from `began` until now.
    Probed { at: Nanos, began: Nanos, node: NodeId, outcome: Result<(), String> },
    /// All faults have ended, and all living hosts can reach each other.
    Healed { at: Nanos },
    /// Reported about every simulated second, for promises that are broken when nothing happens.
    Passed { at: Nanos },
}

/// A new cluster with the state of an old cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLife {
    /// Position before the first entry of the new log.
    pub beginning: Position,
    /// Last zxid of the state.
    pub floor: Zxid,
    /// Containers and TTL znodes: the cluster may delete such a znode at any time.
    pub wild: BTreeSet<String>,
    /// State at the beginning, as facts about the log.
    pub begins_with: Vec<Fact>,
}

/// Service owed because a quorum of running voters with working disks is fully connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Nodes that reach a quorum.
    pub may_lead: BTreeSet<NodeId>,
    /// Nodes that reach all nodes that may lead: their clients are served.
    pub serving: BTreeSet<NodeId>,
    /// Clients that have a path to each node that may lead.
    pub served: BTreeMap<ClientId, Served>,
    /// Last change of the nodes, of their disks, or of the links between them.
    pub changed: Nanos,
    /// No change of members is pending: the service is owed, and not only the end of the change.
    pub is_settled: bool,
    /// Time after which the leader changes these members by itself, if it does.
    pub changes_after: Option<Duration>,
    /// All members are fully connected, and each runs the new release, for good.
    pub is_upgraded: bool,
    /// Slowdown of the quorum's disks, from 1: a flush takes at most this many times the usual time.
    pub disk_pace: u32,
    /// Slowdown of the slowest node's processor, from 1.
    pub slowdown: u32,
}

/// Ground on which a client is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Last change of the nodes and links that may serve the client, or of the client.
    pub changed: Nanos,
    /// Last change, or fault of a connection, after which the client may not know that a connection is gone.
    pub disturbed: Nanos,
    /// Each member serves, and the client reaches each.
    pub by_all: bool,
    /// So does each former member, which an old session still knows.
    pub by_former: bool,
}

impl Fact {
    /// Returns the true time of a fact that has one.
    pub fn true_time(&self) -> Option<Nanos> {
        match self {
            Fact::Client { at, .. }
            | Fact::Node { at, .. }
            | Fact::Connected { at, .. }
            | Fact::Operated { at, .. }
            | Fact::Probed { at, .. }
            | Fact::Healed { at }
            | Fact::Passed { at } => Some(*at),
            _ => None,
        }
    }
}

/// Locks of a workload: numbers and paths.
#[derive(Clone, Debug)]
pub struct Locks {
    paths: Vec<String>,
    numbers: BTreeMap<String, Lock>,
}

impl Locks {
    /// Creates locks at these paths, numbered from 0.
    pub fn at(paths: impl IntoIterator<Item = String>) -> Self {
        let paths: Vec<String> = paths.into_iter().collect();
        let numbers = paths.iter().enumerate().map(|(number, path)| (path.clone(), Lock(number))).collect();
        Locks { paths, numbers }
    }

    pub fn path(&self, lock: Lock) -> &str {
        &self.paths[lock.0]
    }

    pub fn all(&self) -> impl Iterator<Item = (Lock, &str)> {
        self.paths.iter().enumerate().map(|(number, path)| (Lock(number), path.as_str()))
    }

    pub fn find(&self, path: &str) -> Option<Lock> {
        self.numbers.get(path).copied()
    }

    /// Returns the lock whose queue contains the znode at this path.
    pub fn of_member(&self, path: &str) -> Option<Lock> {
        path.rsplit_once('/').and_then(|(lock, _)| self.find(lock))
    }
}
