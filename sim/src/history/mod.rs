//! Facts of a run, as seen from outside. Checkers use facts and nothing else, so a test can give a checker a
//! history that no correct system would produce.
//!
//! [`crate::fact_recorder`] makes the facts about the log; clients and nodes report the facts in [`client`]
//! and [`node`], with true times.

pub mod access;
pub mod client;
pub mod node;
#[cfg(test)]
pub mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowlock_proto::lock::Mode;
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{ErrorCode, FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{EndReason, SessionEnd};
use rowlock_world::time::Nanos;

use client::{ClientFact, ClientId, Logged, Znode};
use node::{NodeFact, Position};

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

/// Owner of a queue position that takes part in deadlock detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The session as a whole.
    Session(SessionId),
    /// One of the owners named by the client.
    Named(u64),
    /// The session as a whole, which works under the positions with this number: their creator waits for the
    /// session.
    Under(SessionId, u64),
}

/// Bound on the distance of every leader's clock, at all times, from one clock that runs at the simulation's
/// rate.
pub const CLOCK_SPREAD_MS: i64 = 50;

/// Reply of the log to a tagged write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Locks of an acquire, each with its position.
    pub places: Vec<(Lock, Option<FencingToken>)>,
    /// Complete reply, for comparison.
    pub text: String,
    /// Lower bound of the bytes needed to store the reply.
    pub bytes: usize,
    /// Reason for a refusal.
    pub refused: Option<ErrorCode>,
}

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
    /// The log answered a command of the session itself.
    Answered { session: SessionId, attachment: Attachment, refused: Option<ErrorCode> },

    /// The log created an ephemeral znode.
    EphemeralCreated { path: String, session: SessionId },
    /// The log deleted a znode.
    Deleted { path: String },

    /// The log added a member to a lock's queue. `number` identifies the position for sessions that work
    /// under it ([`Owner::Under`]).
    Queued {
        lock: Lock,
        token: FencingToken,
        session: SessionId,
        mode: Mode,
        owner: Option<Owner>,
        number: u64,
    },
    /// The log granted a lock that has this many permits.
    Entitled {
        lock: Lock,
        token: FencingToken,
        session: SessionId,
        limit: Option<u32>,
        zxid: Zxid,
        at: Millis,
    },
    /// The log removed a member from a lock's queue.
    Left { lock: Lock, token: FencingToken, at: Zxid },
    /// The limit in the lock's znode has changed; `None`: no limit, or no znode.
    Limit { lock: Lock, limit: Option<u32> },
    /// The session of a holder has expired, and the holder had requested a lock-delay: no grant before
    /// `until`.
    Delayed { lock: Lock, until: Millis },
    /// A lock-delay has ended early, by force or by the deletion of the lock's znode.
    Undelayed { lock: Lock },
    /// The log revoked the lock from a holder after its longest hold. `has_maximum`: the holder itself had
    /// requested a maximum hold.
    Revoked { lock: Lock, token: FencingToken, session: SessionId, at: Millis, has_maximum: bool },
    /// A holder has had a question since `asked` by the log's clock. `deadline`: time by which the holder
    /// must release the lock, with its distance from the question in milliseconds.
    Questioned { lock: Lock, token: FencingToken, asked: Millis, deadline: Option<(Millis, u32)> },
    /// The log refused a position because waiting would close this circle.
    Refused {
        lock: Lock,
        session: SessionId,
        mode: Mode,
        owner: Option<Owner>,
        circle: Vec<(Lock, FencingToken)>,
    },
    /// The log answered a tagged write of an attached session. `changed`: the write changed something, or
    /// took a zxid.
    Once { session: SessionId, id: u64, acked: u64, changed: bool, reply: Reply },
    /// A holder continues in another mode, at the same position.
    Converted { lock: Lock, token: FencingToken, mode: Mode },
    /// Entry of event streams and histories about a change of any lock.
    LockEvent(Arc<HistoryEntry>),
    /// A position has left a queue, for this reason. Follows [`Fact::Left`].
    Gone { lock: Lock, token: FencingToken, why: EndReason },
    /// The log applied a write of [`client::DATA`]. A repeated numbered write is not reported again.
    Logged(Arc<Logged>),
    /// A znode below [`client::DATA`], or its list of children, has changed.
    Znode(Arc<Znode>),
    /// The rules of locks have this text from now on. An empty text: there are no rules.
    Rules { zxid: Zxid, text: String },
    /// All facts of a command have been reported.
    Committed { zxid: Zxid },
    /// The state has another value than the oracle, or the oracle's own queues break this promise.
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
    /// One of these nodes must lead soon, if every flush takes at most a second; `None`: no node must.
    Electable { at: Nanos, may_lead: Option<Arc<BTreeSet<NodeId>>> },
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
    pub served: BTreeSet<ClientId>,
}

impl Fact {
    /// Returns the true time of a fact that has one.
    pub fn true_time(&self) -> Option<Nanos> {
        match self {
            Fact::Client { at, .. }
            | Fact::Node { at, .. }
            | Fact::Connected { at, .. }
            | Fact::Electable { at, .. }
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
