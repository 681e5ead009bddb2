//! The facts of a run, as the world sees them from outside. Checkers judge facts and nothing else, so a test can show
//! a checker a history that no correct system would produce.

use rowlock_proto::{ErrorCode, FencingToken, NodeId, SessionId, Zxid};
use rowlock_state::command::Attachment;
use rowlock_state::outcome::SessionEnd;

/// Position in the log, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index(pub u64);

/// The simulation's own clock, milliseconds. Nobody inside the simulation can read it wrongly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

/// One of the locks of the workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock(pub usize);

/// A connection between a client and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// How a replica came to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Applied one entry after another.
    Apply,
    /// From a snapshot of its own, after a crash.
    Restart,
    /// From another replica's snapshot.
    Install,
}

/// Something that happened. Facts about the log are told once, in log order; all facts are told in time order.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The log opened a session.
    SessionOpened { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The log moved a session to another connection.
    SessionAttached { session: SessionId, attachment: Attachment, timeout_ms: u32, at: Millis },
    /// The leader heard of a session.
    SessionTouched { session: SessionId, at: Millis },
    /// A new leader gave every session its full timeout.
    AllTouched { at: Millis },
    /// The log ended a session.
    SessionEnded { session: SessionId, end: SessionEnd, at: Millis },
    /// The log answered a session's own command.
    Answered { session: SessionId, attachment: Attachment, refused: Option<ErrorCode> },

    /// The log created an ephemeral znode.
    EphemeralCreated { path: String, session: SessionId },
    /// The log deleted a znode.
    Deleted { path: String },

    /// The log added a member to a lock's queue.
    Queued { lock: Lock, token: FencingToken, session: SessionId },
    /// The log removed a member from a lock's queue.
    Left { lock: Lock, token: FencingToken, at: Zxid },
    /// A client wants the lock.
    Wanted { lock: Lock, session: SessionId },
    /// A client does not want it any more (gave up, crashed, lost its session), or has let go of it.
    Unwanted { lock: Lock, session: SessionId },
    /// A client believes from now that it holds the lock, until `until` unless renewed; it saw the state at `seen`.
    Granted { lock: Lock, token: FencingToken, session: SessionId, seen: Zxid, now: Millis, until: Millis },
    /// A client may believe in its session, and so in its lock, for longer.
    Renewed { session: SessionId, now: Millis, until: Millis },
    /// A client stops to believe that it holds the lock.
    BeliefEnded { lock: Lock, session: SessionId },
    /// A waiter (its own place: `own`) was told that the queue member `gone`, deleted by `zxid`, is gone.
    Woken { lock: Lock, gone: FencingToken, own: FencingToken, session: SessionId, zxid: Zxid },
    /// The resource that the lock protects took a write.
    ResourceWritten { lock: Lock, token: FencingToken },

    /// A replica had applied up to `index` and then had this digest.
    Replica { node: NodeId, index: Index, digest: u64, origin: Origin },
    /// A client received a watch event.
    EventReceived { connection: ConnectionId, zxid: Zxid },
    /// A client received a reply.
    ReplyReceived { connection: ConnectionId, session: SessionId, zxid: Zxid },
    /// All faults have ended and everybody had the time to finish.
    Settled,
}
