//! Facts about the clients of a simulated cluster, as the clients report them, at true times; and the log's
//! view of the same operations, in the same terms.
//!
//! A client that neglects these duties makes the checkers report false errors:
//! 1. The client reports [`ClientFact::Invoked`] right before the first poll of the call's future, so that
//!    the reports of a session's calls are in the order of sending.
//! 2. After a reply the client polls each of its watches once, and reports fired watches before
//!    [`ClientFact::Returned`].
//! 3. The client writes znodes below [`DATA`] by reported calls only, and every call writes unique data.
//! 4. The client reports [`ClientFact::Holds`] and [`ClientFact::Alive`] in the poll in which it checks
//!    (`guard.is_held()`), so that no pause comes between.

use std::sync::Arc;

use bytes::Bytes;
use rowlock_proto::lock::Mode;
use rowlock_proto::report::{HistoryEntry, Locks, Queue, Sessions};
use rowlock_proto::{CreateMode, ErrorCode, EventType, FencingToken, SessionId, Stat, Version, Zxid};

use super::access::Access;
use super::{Lock, Millis};

/// Parent of all plain znodes of the workloads.
pub const DATA: &str = "/data";

/// Returns the path of the znode that clients write with this token of the lock as a fence.
pub fn fenced_path(lock: Lock, token: FencingToken) -> String {
    format!("{DATA}/fence-{}-{token}", lock.0)
}

/// Returns the lock and the token that must hold the lock, for a path of [`fenced_path`].
pub fn fence_of(path: &str) -> Option<(Lock, FencingToken)> {
    let (lock, token) = path.strip_prefix(DATA)?.strip_prefix("/fence-")?.split_once('-')?;
    Some((Lock(lock.parse().ok()?), FencingToken(token.parse().ok()?)))
}

/// A client of the workload, through all its lives and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub usize);

/// One call of one client, unique in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A watch requested by a read, unique in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadKind {
    Data,
    Exists,
    Children,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `path`: as requested, without the number of a sequential znode.
    Create {
        path: String,
        data: Option<Bytes>,
        mode: CreateMode,
    },
    /// setData; [`Version::ANY`] skips the check of the version.
    Set {
        path: String,
        data: Option<Bytes>,
        version: Version,
    },
    Delete {
        path: String,
        version: Version,
    },
    Check {
        path: String,
        version: Version,
    },
    Multi(Vec<Op>),
    /// A read. `synced`: after a sync within the same call, so that the read sees all writes acknowledged
    /// before the call.
    Read {
        kind: ReadKind,
        path: String,
        watch: Option<WatchId>,
        synced: bool,
    },
    Sync,
    /// Waits for a lock without a limit.
    Acquire {
        lock: Lock,
        mode: Mode,
    },
    Release {
        lock: Lock,
        token: FencingToken,
    },
    /// One HTTP request of an attempt at these locks, answered with [`Answer::Held`].
    Held {
        locks: Vec<Lock>,
    },
    /// Removes the holder with this token, or any holder: by a forced release, or by a repeated UNLOCK.
    /// Answered with [`Answer::Released`].
    Force {
        lock: Lock,
        token: Option<FencingToken>,
    },
    /// Reads from the log whether a lock is held (Rowlock's verify).
    Verify {
        lock: Lock,
        token: FencingToken,
    },
}

/// Answer to an accepted call.
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
    /// Answers of a multi, one per operation.
    Multi(Vec<Answer>),
    Data(Option<Bytes>, Stat),
    /// Answer of exists; `None`: no such znode.
    Exists(Option<Stat>),
    Children(Vec<String>, Stat),
    Synced,
    Acquired(FencingToken),
    Held(Vec<FencingToken>),
    /// The attempt waits at this position of the queue, counted from 1.
    Waiting(u64),
    /// The lock is held by a position whose label has this text.
    Taken(String),
    /// Whether the lock was held until the release.
    Released(bool),
    /// Whether the lock is held.
    Verified(bool),
}

/// Reason for a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Refused by the server, without any effect.
    Refused(ErrorCode),
    /// Refused because of this operation of a multi, counted from 0, without any effect.
    RefusedAt(usize, ErrorCode),
    /// Never sent, or given up without any effect (timeout of a lock, session over), according to the client.
    NotDone,
    /// The effect may have happened or not, or may still happen.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Plain,
    /// A store with a fence is about to get the token, and refuses smaller tokens from now on.
    Presented,
    /// Answer of a store with a fence, and again the end of a write that took time.
    Fenced {
        accepted: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum ClientFact {
    /// The client has opened a session. `grace_ms`: the requested disconnect grace, if any.
    Session {
        session: SessionId,
        timeout_ms: u32,
        grace_ms: Option<u32>,
    },
    /// The client's new session uses ZooKeeper's requests only: such a session hears of no grant, and gets
    /// queue positions only by creating them.
    Plain {
        session: SessionId,
    },
    /// The client's new session is an HTTP lease, which may fall silent on purpose.
    Lease {
        session: SessionId,
    },
    /// One of the largest allowed requests has ended: accepted, refused, or without an answer.
    Asked {
        kind: Large,
        outcome: Result<Option<ErrorCode>, ()>,
    },
    Connects {
        session: SessionId,
        what: Connect,
    },
    /// The connection of a session of our client has changed.
    Link {
        session: SessionId,
        now: Link,
    },
    /// An event of the persistent watches of a session.
    Follows {
        session: SessionId,
        what: Follow,
    },
    /// An event of a client that follows lock events by HTTP, on one stream at a time, or pages through the
    /// history.
    Events(Events),
    /// Request on a lock under rules, or its answer.
    Access(Access),
    /// The client believes at this moment that its session is alive, and will be for at least `for_ms` by the
    /// client's clock.
    Alive {
        session: SessionId,
        for_ms: u32,
    },
    Invoked {
        call: CallId,
        session: SessionId,
        op: Arc<Op>,
    },
    /// A call has ended. A call whose future was dropped ends with [`Failure::Unknown`].
    Returned {
        call: CallId,
        result: Result<Answer, Failure>,
    },
    Event {
        watch: WatchId,
        kind: EventType,
        path: String,
        zxid: Zxid,
    },
    /// The client believes at this moment that it may act under the lock.
    Holds {
        lock: Lock,
        token: FencingToken,
        mode: Mode,
    },
    /// The client no longer acts under the lock (after a release, or after a known loss).
    LetGo {
        lock: Lock,
        token: FencingToken,
    },
    /// The client is about to ask the holders of a lock for its release, with or without a time limit.
    Asks {
        lock: Lock,
        within_ms: Option<u32>,
    },
    /// The client knows the question asked at this time of the log's clock.
    Heard {
        lock: Lock,
        token: FencingToken,
        asked: Millis,
    },
    /// The deadline of a question is over, so the client has lost the lock.
    GaveUp {
        lock: Lock,
        token: FencingToken,
    },
    /// A client waits for a reply that is due: to a small request of a quiet client, or to an acquire by HTTP
    /// whose time to wait is over.
    Waits {
        request: &'static str,
    },
    /// The client has the reply, or no longer wants a reply.
    Served,
    /// A node has confirmed to an operator or to the client that a session has ended.
    HasEnded {
        session: SessionId,
    },
    /// A store gets or answers a write with the token.
    Wrote {
        lock: Lock,
        token: FencingToken,
        store: Store,
    },
    /// The client's process is gone or idle. Requests in flight may still take effect. The client may return.
    Ended,
}

/// Requests as large as a frame, or a list in the frame, may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Large {
    /// create with the largest possible data.
    Data,
    Set,
    /// create with the longest allowed name.
    Name,
    /// acquire of the deepest lock whose missing znodes one request may create.
    Ancestors,
    /// create with a name that fills the frame: longer than the limit of a path.
    TooLong,
    /// multi with the largest number of checks.
    Checks,
    /// multi with the largest number of creates.
    Creates,
    /// acquire of the largest number of locks, with names that fill the frame.
    Places,
    /// setWatches2 with the largest number of paths.
    Watches,
    /// setACL with the largest number of entries.
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

    /// Returns the only correct error, if success would be wrong.
    pub fn refusal(self) -> Option<ErrorCode> {
        (self == Large::TooLong).then_some(ErrorCode::BadArguments)
    }
}

/// Events of a session with persistent watches, for one connection after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The client has added a watch; the reply showed the state of `since`.
    Added {
        path: String,
        is_recursive: bool,
        since: Zxid,
    },
    /// The client has removed a watch.
    Removed {
        path: String,
        is_recursive: bool,
    },
    Told {
        kind: EventType,
        path: String,
        zxid: Zxid,
    },
    /// A reply has shown the state of `zxid`.
    Shown {
        zxid: Zxid,
    },
    Cut,
    /// The new connection has all watches; the reply showed the state of `since`.
    Rearmed {
        since: Zxid,
    },
}

/// Events of a client that follows lock events. `scope`: path of a single lock; `None`: all locks.
#[derive(Clone, Debug, PartialEq)]
pub enum Events {
    /// The client requests a stream of events after this change, or of future events.
    Begins {
        scope: Option<String>,
        after: Option<Zxid>,
    },
    /// The stream has delivered this event, or a gap.
    Told(Box<HistoryEntry>),
    /// The stream has delivered all events up to this change.
    UpTo(Zxid),
    /// The node has no stream from the client's position: the answer was 400.
    Refused,
    Ends,
    /// The client requests the complete history so far, in pages.
    Pages {
        scope: Option<String>,
    },
    /// The next page has arrived, of earlier entries. The newest entry is the last.
    Page(Vec<HistoryEntry>),
    /// A node has returned the queue of a lock.
    Queue(Box<Queue>),
    /// A node has returned all locks.
    Locks(Box<Locks>),
    /// A node has returned all sessions to a superuser.
    Sessions(Box<Sessions>),
}

/// Connection events of a plain session, which has at most one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// The client sends a connect request for its session. `has_seen`: the request has a zxid, so that the
    /// node knows the session before the reply.
    Begins { has_seen: bool },
    /// The node has confirmed the session.
    Done,
    /// The client has closed or lost the connection.
    Left,
    /// The node has answered a request with SessionMoved (-118).
    ToldMoved,
}

/// Connection of a session of our client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    Down,
    /// The client ends the session, and awaits no more events.
    Closing,
}

/// A write below [`DATA`] applied by the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    pub zxid: Zxid,
    pub session: SessionId,
    pub op: Op,
    /// Result in the log: never [`Failure::NotDone`] nor [`Failure::Unknown`].
    pub result: Result<Answer, Failure>,
}

/// [`DATA`] or a znode below, after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    pub zxid: Zxid,
    pub path: String,
    pub change: ZnodeChange,
    /// Current data and Stat; `None` after a delete.
    pub now: Option<(Option<Bytes>, Stat)>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZnodeChange {
    Created,
    Deleted,
    Data,
    /// A child was created or deleted; `name_hash` is [`name_hash`] of the child's name.
    Child {
        name_hash: u64,
    },
}

/// Returns a hash of a child's name. The XOR of the hashes of a list of children identifies the list.
pub fn name_hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Without this step, names that differ only in their last digits would cancel each other.
    (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (hash >> 29)
}

impl Op {
    /// Returns the paths that the operation reads or writes, as requested.
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

    /// Returns whether the operation may change znodes.
    pub fn is_write(&self) -> bool {
        matches!(self, Op::Create { .. } | Op::Set { .. } | Op::Delete { .. } | Op::Multi(_))
    }
}

impl Answer {
    /// Returns the zxid of the acknowledged write, as far as the answer contains it.
    pub fn zxid(&self) -> Option<Zxid> {
        match self {
            Answer::Created { stat, .. } => Some(stat.czxid),
            Answer::Set(stat) => Some(stat.mzxid),
            Answer::Multi(answers) => answers.iter().find_map(Answer::zxid),
            _ => None,
        }
    }
}
