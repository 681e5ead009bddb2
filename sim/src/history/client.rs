//! What the clients of a simulated cluster did and heard, by their own account and at true times; and what
//! the log says to the same things, in the same terms.
//!
//! A client has duties; if it neglects them, the checkers report errors where there are none:
//! 1. It reports [`ClientFact::Invoked`] right before the call's future is polled for the first time, so that
//!    calls of one session are reported in the order in which they are sent.
//! 2. When a reply has come, it asks each of its watches once whether it has fired, and reports those events
//!    before it reports [`ClientFact::Returned`].
//! 3. It writes znodes below [`DATA`] by reported calls only, and every call writes data that no other call
//!    writes.
//! 4. It reports [`ClientFact::Holds`] and [`ClientFact::Alive`] in the same poll as it asks
//!    (`guard.is_held()`), so that no pause comes between.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::lock::Mode;
use rowlock_proto::report::{HistoryEntry, Locks, Queue, Sessions};
use rowlock_proto::{CreateMode, ErrorCode, EventType, FencingToken, SessionId, Stat, Version, Zxid};

use super::{Lock, Millis};

/// The parent of all plain znodes that workloads write.
pub const DATA: &str = "/data";

/// A client of the workload, also over several lives and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// One call of one client; no two calls of a run have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A watch that a read has left (or was to leave); no two of a run have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(pub u64);

/// Kind of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadKind {
    Data,
    Exists,
    Children,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `path`: as asked, without the number of a sequential znode.
    Create {
        path: String,
        data: Option<Bytes>,
        mode: CreateMode,
    },
    /// setData; [`Version::ANY`]: whatever the version is.
    Set {
        path: String,
        data: Option<Bytes>,
        version: Version,
    },
    Delete {
        path: String,
        version: Version,
    },
    /// Only in a multi.
    Check {
        path: String,
        version: Version,
    },
    /// All of them or none.
    Multi(Vec<Op>),
    /// A read. `synced`: after a sync of the same call, so that it sees everything that was answered before
    /// the call.
    Read {
        kind: ReadKind,
        path: String,
        watch: Option<WatchId>,
        synced: bool,
    },
    Sync,
    /// Wait for a lock, for as long as it takes.
    Acquire {
        lock: Lock,
        mode: Mode,
    },
    /// Give a lock back.
    Release {
        lock: Lock,
        token: FencingToken,
    },
    /// One request by HTTP of an attempt at these locks, answered with [`Answer::Held`].
    Held {
        locks: Vec<Lock>,
    },
    /// Put the holder of a lock out, the one with this token or whichever it is: by a forced release, or by
    /// an UNLOCK that is repeated. Answered with [`Answer::Released`].
    Force {
        lock: Lock,
        token: Option<FencingToken>,
    },
    /// Ask the log whether a lock is held (Rowlock's verify).
    Verify {
        lock: Lock,
        token: FencingToken,
    },
}

/// The answer to a call that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `path`: with the number of a sequential znode.
    Created {
        path: String,
        stat: Stat,
    },
    Set(Stat),
    Deleted,
    Checked,
    /// The answers of a multi, one per operation.
    Multi(Vec<Answer>),
    Data(Option<Bytes>, Stat),
    /// exists; `None`: there is none.
    Exists(Option<Stat>),
    Children(Vec<String>, Stat),
    Synced,
    /// The lock is held.
    Acquired(FencingToken),
    /// All the locks are held.
    Held(Vec<FencingToken>),
    /// The lock is held by a place whose label has this text.
    Taken(String),
    /// Whether it was held until then.
    Released(bool),
    /// Whether it is held.
    Verified(bool),
}

/// Why there was no answer of the wanted kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// By the server: without any effect.
    Refused(ErrorCode),
    /// The operation of a multi that was refused, from 0, and why: without any effect.
    RefusedAt(usize, ErrorCode),
    /// The client says that it was not sent, or gave up without any effect (timeout of a lock, session over).
    NotDone,
    /// It may have had its effect, or not, or may have it later.
    Unknown,
}

/// A store that a lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// It takes every write.
    Plain,
    /// It refuses tokens below the highest that it has taken; whether it took this one.
    Fenced { accepted: bool },
}

/// A fact that a client reports.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientFact {
    /// It has opened a session. `grace_ms`: its disconnect grace, if it asked for one.
    Session {
        session: SessionId,
        timeout_ms: u32,
        grace_ms: Option<u32>,
    },
    /// The session that it has opened speaks only ZooKeeper's requests: it hears of no grant, and asks for no
    /// place but by creating one.
    Plain {
        session: SessionId,
    },
    /// The session that it has opened is a lease by HTTP, which may fall silent on purpose.
    Lease {
        session: SessionId,
    },
    /// One of the largest allowed requests has ended: refused or not, or without an answer.
    Asked {
        kind: Large,
        outcome: Result<Option<ErrorCode>, ()>,
    },
    /// Something about the connections of a plain session.
    Connects {
        session: SessionId,
        what: Connect,
    },
    /// Something about the persistent watches of a session.
    Follows {
        session: SessionId,
        what: Follow,
    },
    /// It follows the events of locks by HTTP, on one stream at a time, or pages through them.
    Events(Events),
    /// It believes at this moment that its session is alive, and that it will be for at least this long, by
    /// its clock.
    Alive {
        session: SessionId,
        for_ms: u32,
    },
    Invoked {
        call: CallId,
        session: SessionId,
        op: Arc<Op>,
    },
    /// A call has come to its end. A call whose future was dropped ends with [`Failure::Unknown`].
    Returned {
        call: CallId,
        result: Result<Answer, Failure>,
    },
    /// A watch has fired.
    Event {
        watch: WatchId,
        kind: EventType,
        path: String,
        zxid: Zxid,
    },
    /// It believes at this moment that it may act under the lock.
    Holds {
        lock: Lock,
        token: FencingToken,
        mode: Mode,
    },
    /// It no longer acts under the lock (it released it, or knows that it has lost it).
    LetGo {
        lock: Lock,
        token: FencingToken,
    },
    /// It is about to ask the holders of a lock to give it back, within this time or without any.
    Asks {
        lock: Lock,
        within_ms: Option<u32>,
    },
    /// It knows what it was asked at this time of the log's clock.
    Heard {
        lock: Lock,
        token: FencingToken,
        asked: Millis,
    },
    /// The time that a question gave is over, so it has lost the lock.
    GaveUp {
        lock: Lock,
        token: FencingToken,
    },
    /// A quiet client has a small request, and waits for its answer.
    Waits {
        request: &'static str,
    },
    /// It has the answer, or does not want it any more.
    Served,
    /// An operator was told that a session has ended.
    HasEnded {
        session: SessionId,
    },
    /// A store answered a write that carried the token.
    Wrote {
        lock: Lock,
        token: FencingToken,
        store: Store,
    },
    /// Its process is gone, or it does nothing more. What it still had on its way may happen. It may come
    /// back.
    Ended,
}

/// Requests that are as large as a frame, or a list in it, may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Large {
    /// create, with as much data.
    Data,
    Set,
    /// create, with a name as long as may be.
    Name,
    /// acquire, of as deep a lock as its missing znodes may make it.
    Ancestors,
    /// create, with a name that fills the frame: longer than a path may be.
    TooLong,
    /// multi, of as many operations.
    Checks,
    /// multi, of as many creates.
    Creates,
    /// acquire, of as many locks with names as long.
    Places,
    /// setWatches2, with as many paths.
    Watches,
    /// setACL, with as many entries.
    Acl,
}

impl Large {
    pub const ALL: [Large; 10] = [
        Large::Data,
        Large::Set,
        Large::Name,
        Large::Ancestors,
        Large::TooLong,
        Large::Checks,
        Large::Creates,
        Large::Places,
        Large::Watches,
        Large::Acl,
    ];

    /// The only right answer, if it is no success.
    pub fn refusal(self) -> Option<ErrorCode> {
        (self == Large::TooLong).then_some(ErrorCode::BadArguments)
    }
}

/// What a session with persistent watches does and hears. Told for one connection after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// A watch was added; the answer showed the state of `since`.
    Added { path: String, is_recursive: bool, since: Zxid },
    /// It was taken away again.
    Removed { path: String, is_recursive: bool },
    /// An event has come.
    Told { kind: EventType, path: String, zxid: Zxid },
    /// An answer has shown the state of `zxid`.
    Shown { zxid: Zxid },
    /// The connection is gone.
    Cut,
    /// All its watches are registered on the next one; the answer showed the state of `since`.
    Rearmed { since: Zxid },
}

/// What a client does and hears that follows the events of locks. `scope`: the path of the one lock;
/// otherwise of all.
#[derive(Clone, Debug, PartialEq)]
pub enum Events {
    /// It asks for a stream of those behind this change, or of those from now on.
    Begins { scope: Option<String>, after: Option<Zxid> },
    /// The stream tells of this one, or of a gap.
    Told(Box<HistoryEntry>),
    /// The stream has told of all up to this change.
    UpTo(Zxid),
    /// There is no stream behind what it knows: the answer was 400.
    Refused,
    /// The stream is over.
    Ends,
    /// It asks for all that has happened so far, in pages.
    Pages { scope: Option<String> },
    /// The next page has come, of what was before. The newest is the last.
    Page(Vec<HistoryEntry>),
    /// A node has shown the queue of a lock.
    Queue(Box<Queue>),
    /// A node has shown all locks.
    Locks(Box<Locks>),
    /// A node has shown all sessions to a superuser.
    Sessions(Box<Sessions>),
}

/// How a plain session stands with its connections: it has one at a time at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// It asks a node for its session. `has_seen`: it names a zxid, so that the node knows the session before
    /// it answers.
    Begins { has_seen: bool },
    /// The node has said that the session is there.
    Done,
    /// It gives the connection up, or has lost it.
    Left,
    /// The node has answered a request with SessionMoved (-118).
    ToldMoved,
}

/// A write below [`DATA`] that the log has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub zxid: Zxid,
    pub session: SessionId,
    pub op: Op,
    /// What the log says to it: never [`Failure::NotDone`] nor [`Failure::Unknown`].
    pub result: Result<Answer, Failure>,
}

/// A znode below [`DATA`] (or that one itself) after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    pub zxid: Zxid,
    pub path: String,
    /// The change of the znode.
    pub change: ZnodeChange,
    /// Current data and Stat.
    pub now: Option<(Option<Bytes>, Stat)>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZnodeChange {
    Created,
    Deleted,
    /// It has new data.
    Data,
    /// A child has come (or gone); `name_hash` is [`name_hash`] of the child's name.
    Child {
        name_hash: u64,
    },
}

/// A number of a child's name: the numbers of a list of children, taken together by XOR, say which children
/// they are.
pub fn name_hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Without it names that differ in their last digits only would cancel each other.
    (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (hash >> 29)
}

impl Op {
    /// The paths that it reads or writes, as asked.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Delete { path, .. }
            | Op::Check { path, .. }
            | Op::Read { path, .. } => vec![path],
            Op::Multi(ops) => ops.iter().flat_map(Op::paths).collect(),
            Op::Sync
            | Op::Acquire { .. }
            | Op::Release { .. }
            | Op::Held { .. }
            | Op::Force { .. }
            | Op::Verify { .. } => Vec::new(),
        }
    }

    /// It may change znodes.
    pub fn is_write(&self) -> bool {
        matches!(self, Op::Create { .. } | Op::Set { .. } | Op::Delete { .. } | Op::Multi(_))
    }
}

impl Answer {
    /// The zxid of the write that was answered, as far as the answer tells it.
    pub fn zxid(&self) -> Option<Zxid> {
        match self {
            Answer::Created { stat, .. } => Some(stat.czxid),
            Answer::Set(stat) => Some(stat.mzxid),
            Answer::Multi(answers) => answers.iter().find_map(Answer::zxid),
            _ => None,
        }
    }
}
