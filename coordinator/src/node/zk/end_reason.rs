//! Reasons for the end of a connection, with a single place for the decision and for the log line.

use std::io;

use rowlock_proto::{FrameError, SessionId};

use crate::node::delivery::outbox::CloseReason;

/// Reason for the end of a connection. All but `Finished` close without a further reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndReason {
    /// The last reply has been encoded (closeSession, or an error that is followed by a close).
    #[error("finished")]
    Finished,
    #[error("client hung up")]
    HungUp,
    #[error("socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The client sent no complete handshake in time.
    #[error("no handshake in time")]
    NoHandshake,
    /// The TLS handshake failed.
    #[error("{0}")]
    NoTls(String),
    /// The bytes are no frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A frame is no request.
    #[error("not a request: {0}")]
    Garbage(String),
    /// The client does not read its replies and events.
    #[error("client does not read: {0}")]
    Slow(&'static str),
    /// The client was silent for a whole session timeout.
    #[error("nothing heard for the session timeout")]
    Silent,
    /// The client has seen a later state than this node will have soon.
    #[error("client is ahead of this node")]
    Ahead,
    /// The session is unknown, has ended, or the password is wrong.
    #[error("session {0} is not valid")]
    BadSession(SessionId),
    /// The node has too many new sessions, or no room for one.
    #[error("no new session: {0}")]
    NoNewSession(&'static str),
    /// The outcome of the writes in flight is unknown.
    #[error("outcome of requests is unknown: leader lost")]
    Lost,
    #[error("closed by the node: {0:?}")]
    Told(CloseReason),
    /// The proposer has ended: the node stops.
    #[error("node stops")]
    Stopping,
}

impl EndReason {
    /// Returns whether the client's side closed the connection. A close by this node, or silence of the
    /// network, does not count: the client may still believe in its session then.
    pub(super) fn is_hang_up(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match self {
            EndReason::HungUp => true,
            EndReason::Socket(error) => {
                matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
            }
            _ => false,
        }
    }

    /// Returns whether the client broke a rule or exceeded a bound: logged at info (rate limited), so that an
    /// operator can find the client.
    pub(super) fn is_fault_of_client(&self) -> bool {
        matches!(
            self,
            EndReason::Frame(_)
                | EndReason::Garbage(_)
                | EndReason::Slow(_)
                | EndReason::NoHandshake
                | EndReason::NoTls(_)
                | EndReason::NoNewSession(_)
        )
    }

    pub(super) fn is_overflow(&self) -> bool {
        matches!(self, EndReason::Slow(_) | EndReason::Frame(FrameError::TooLong { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_close_by_the_clients_side_is_a_hang_up() {
        let socket = |kind: io::ErrorKind| EndReason::Socket(kind.into());
        assert!(EndReason::HungUp.is_hang_up());
        assert!(socket(io::ErrorKind::ConnectionReset).is_hang_up());
        for end in [
            socket(io::ErrorKind::TimedOut),
            socket(io::ErrorKind::HostUnreachable),
            EndReason::Silent,
            EndReason::Finished,
            EndReason::Lost,
            EndReason::Told(CloseReason::SessionMoved),
        ] {
            assert!(!end.is_hang_up(), "{end}");
        }
    }
}
