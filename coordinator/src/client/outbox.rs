//! The one queue towards a connection's task. Apply, sessions and watches push; the connection's task alone pops.

use bytes::Bytes;
use rowlock_state::outcome::Applied;

/// What a connection's task is told.
#[derive(Debug)]
pub enum Message {
    /// An encoded watch event frame (shared by all connections that watch the same thing).
    Event(Bytes),
    /// The answer to a submission.
    Applied {
        /// The submission's.
        tag: u64,
        /// The outcome; boxed, because messages are many and this one is large.
        applied: Box<Applied>,
    },
    /// The outcome of this connection's outstanding submissions cannot be known (leader lost): close.
    Lost,
    /// The pings that wait may be answered.
    Touched,
    /// Close the connection for the reason given (session ended, moved to another connection, shutdown, not serving).
    Close(CloseReason),
}

/// Why a connection is closed by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its session expired or was closed elsewhere.
    SessionEnded,
    /// Its session was attached to another connection: the next request is answered SessionMoved, then close.
    SessionMoved,
    /// This node has lost contact to the quorum.
    NotServing,
    /// This node stops.
    Shutdown,
}
