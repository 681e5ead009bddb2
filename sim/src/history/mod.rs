//! The facts of a run, as seen from outside. Checkers judge facts and nothing else, so a test can show a
//! checker a history that no correct system would produce.
//!
//! [`crate::fact_recorder`] makes the facts about the log; clients and nodes report those in [`client`] and
//! [`node`], with true times.

pub mod client;
pub mod node;

use std::collections::BTreeSet;
use std::sync::Arc;

use rowlock_proto::lock::Mode;
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{ErrorCode, FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::{SessionEnd, Why};
use rowlock_world::time::Nanos;

use client::{ClientFact, ClientId, Logged, Znode};
use node::{NodeFact, Position};

/// Position in the log, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index(pub u64);

/// The log's clock (`coordinator/raft/consensus/src/log_clock.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

/// One of the locks of the workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock(pub usize);

/// How a replica came to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Applied one entry after another.
    Apply,
    /// From another replica's snapshot.
    Install,
}

/// For whom a place was asked, if it takes part in deadlock detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// For the session as a whole.
    Session(SessionId),
    /// For one of the clients' own owners.
    Named(u64),
    /// For the session as a whole, which works under the places with this number: their maker waits for it.
    Under(SessionId, u64),
}

/// The leaders' clocks, all of them at all times, are no further than this from one clock that runs as the
/// simulation's does.
pub const CLOCK_SPREAD_MS: i64 = 50;

/// The log's answer to a tagged write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Of an acquire: the locks, and the place in each of them.
    pub places: Vec<(Lock, Option<FencingToken>)>,
    /// All of it, for comparison.
    pub text: String,
    /// Keeping it takes at least this many bytes.
    pub bytes: usize,
    /// Why it was refused.
    pub refused: Option<ErrorCode>,
}

/// Something that happened. Facts about the log are told once, in log order; all facts are told in time
/// order.
///
/// In a cluster an entry's facts are reported when the first node has applied it, after that node's
/// [`NodeFact::Applied`] and before anything that the node answers because of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The log opened a session.
    SessionOpened { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The log moved a session to another connection.
    SessionAttached { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The log ended a session.
    SessionEnded { session: SessionId, end: SessionEnd, at: Millis },
    /// The log answered a session's own command.
    Answered { session: SessionId, attachment: Attachment, refused: Option<ErrorCode> },

    /// The log created an ephemeral znode.
    EphemeralCreated { path: String, session: SessionId },
    /// The log deleted a znode.
    Deleted { path: String },

    /// The log added a member to a lock's queue. `number` is for those who work under it ([`Owner::Under`]).
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
    /// The znode of a lock says so from now on; `None`: no limit, or no znode.
    Limit { lock: Lock, limit: Option<u32> },
    /// The session of a holder has expired, and it had asked that no client is granted the lock before.
    Delayed { lock: Lock, until: Millis },
    /// The znode of a lock was deleted, and with it a delay that lasted; or the delay was ended by force.
    Undelayed { lock: Lock },
    /// The log took the lock from a holder that had it for too long.
    /// `has_maximum`: it had asked for a maximum hold itself.
    Revoked { lock: Lock, token: FencingToken, session: SessionId, at: Millis, has_maximum: bool },
    /// A holder has a question, since this time of the log's clock. `deadline`: by when it has to give the
    /// lock back, as a time and the milliseconds from then on.
    Questioned { lock: Lock, token: FencingToken, asked: Millis, deadline: Option<(Millis, u32)> },
    /// The log refused a place, because waiting would close this circle.
    Refused {
        lock: Lock,
        session: SessionId,
        mode: Mode,
        owner: Option<Owner>,
        circle: Vec<(Lock, FencingToken)>,
    },
    /// The log answered a tagged write of a session that was attached. `changed`: it changed something, or
    /// took a zxid.
    Once { session: SessionId, id: u64, acked: u64, changed: bool, reply: Reply },
    /// A holder goes on holding in another mode, in its place.
    Converted { lock: Lock, token: FencingToken, mode: Mode },
    /// What event streams and histories say of a change of any lock.
    LockEvent(Arc<HistoryEntry>),
    /// A place is gone from a queue, for this reason. Comes after [`Fact::Left`].
    Gone { lock: Lock, token: FencingToken, why: Why },
    /// The log ran a write of [`client::DATA`]; not told again when a numbered one comes again.
    Logged(Arc<Logged>),
    /// A znode below [`client::DATA`], or its list of children, is different from now.
    Znode(Arc<Znode>),
    /// Everything that a command did has been told.
    Committed { zxid: Zxid },
    /// A new cluster begins, made of the one so far.
    NewLife(Arc<NewLife>),

    /// A replica had applied up to `index` and then had this digest.
    Replica { node: NodeId, index: Index, digest: u64, origin: Origin },
    /// All faults have ended, and all clients and nodes had time to finish.
    Settled,

    /// A client of a cluster tells what it did or heard.
    Client { client: ClientId, at: Nanos, what: ClientFact },
    /// A node of a cluster was seen doing something.
    Node { node: NodeId, at: Nanos, what: NodeFact },
    /// What has been done to the world is different from now on, and so may be what the cluster owes; `None`:
    /// no quorum is connected.
    Connected { at: Nanos, now: Option<Arc<Connected>> },
    /// One of these nodes must lead soon, on whatever disks that flush within a second; `None`: none must.
    Electable { at: Nanos, may_lead: Option<Arc<BTreeSet<NodeId>>> },
    /// A client that knows no other node has asked this one for a session, a write and a lock, from `began`
    /// until now.
    Probed { at: Nanos, began: Nanos, node: NodeId, outcome: Result<(), String> },
    /// All faults have ended, and all living hosts can reach each other.
    Healed { at: Nanos },
    /// Time has passed. Told every simulated second or so, for promises that are broken by nothing happening.
    Passed { at: Nanos },
}

/// A new cluster, made of the state that an old one had.
#[derive(Clone, Debug, PartialEq)]
pub struct NewLife {
    /// The entry that its log begins behind.
    pub beginning: Position,
    /// The last zxid of its state.
    pub floor: Zxid,
    /// What it has at its beginning, in the words of facts about the log.
    pub begins_with: Vec<Fact>,
}

/// A quorum of the voters that run and whose disks work is fully connected, and so the cluster owes service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Nodes that reach a quorum.
    pub may_lead: BTreeSet<NodeId>,
    /// Nodes that reach each of those: clients of each are served.
    pub serving: BTreeSet<NodeId>,
    /// Clients that reach a way to each node that may lead.
    pub served: BTreeSet<ClientId>,
}

impl Fact {
    /// When it happened, if it is one with a true time.
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

/// The locks of a workload: their numbers by their paths.
#[derive(Clone, Debug)]
pub struct Locks(Vec<String>);

impl Locks {
    /// Locks at these paths, numbered from 0.
    pub fn at(paths: impl IntoIterator<Item = String>) -> Self {
        Locks(paths.into_iter().collect())
    }

    pub fn path(&self, lock: Lock) -> &str {
        &self.0[lock.0]
    }

    pub fn all(&self) -> impl Iterator<Item = (Lock, &str)> {
        self.0.iter().enumerate().map(|(number, path)| (Lock(number), path.as_str()))
    }

    pub fn find(&self, path: &str) -> Option<Lock> {
        self.0.iter().position(|known| known == path).map(Lock)
    }

    /// The one in whose queue the znode at this path is.
    pub fn of_member(&self, path: &str) -> Option<Lock> {
        path.rsplit_once('/').and_then(|(lock, _)| self.find(lock))
    }
}
