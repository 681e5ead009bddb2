//! Error codes of the protocol (`KeeperException.Code`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::right::Right;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// A non-zero `err` of a reply header. Unknown codes of newer servers are kept as
        /// [`ErrorCode::Other`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorCode { $($(#[$doc])* $name,)*
            /// A code that this version does not know.
            Other(i32),
            /// The rules of the lock do not grant this right. On the wire it is [`ErrorCode::NoAuth`], the
            /// code that every client knows.
            NoRight(Right),
        }
        impl ErrorCode {
            /// The number on the wire.
            pub fn code(self) -> i32 { match self { $(Self::$name => $code,)* Self::Other(c) => c, Self::NoRight(_) => Self::NoAuth.code() } }
            /// From the number on the wire; `None` for 0 (no error).
            pub fn from_code(code: i32) -> Option<Self> {
                match code { 0 => None, $($code => Some(Self::$name),)* c => Some(Self::Other(c)) }
            }
        }
        impl fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Other(c) => write!(f, "error {c}"),
                    Self::NoRight(right) => write!(f, "the right \"{right}\" is missing"),
                }
            }
        }
    };
}

codes! {
    /// An error inside the server.
    SystemError = -1, "system error";
    /// An operation of a multi behind the one that failed.
    RuntimeInconsistency = -2, "not run: an earlier operation failed";
    /// Data are not consistent.
    DataInconsistency = -3, "data inconsistency";
    /// The connection was lost; the request may have taken effect.
    ConnectionLoss = -4, "connection lost";
    /// The body could not be decoded, or the request has no sense here.
    MarshallingError = -5, "marshalling error";
    /// Unknown or refused operation.
    Unimplemented = -6, "unimplemented";
    /// The operation took too long.
    OperationTimeout = -7, "operation timeout";
    /// Bad path, flags or argument.
    BadArguments = -8, "bad arguments";
    /// No session has this id.
    UnknownSession = -12, "unknown session";
    /// The new configuration has no quorum.
    NewConfigNoQuorum = -13, "new configuration has no quorum";
    /// Another reconfiguration is under way.
    ReconfigInProgress = -14, "reconfiguration in progress";
    /// The znode does not exist.
    NoNode = -101, "no such znode";
    /// An ACL, or a rule of a lock, does not permit it.
    NoAuth = -102, "not permitted by the ACL or by the rules of the lock";
    /// The version given is not the current one.
    BadVersion = -103, "version conflict";
    /// Ephemeral znodes have no children.
    NoChildrenForEphemerals = -108, "ephemeral znodes may not have children";
    /// The znode exists already.
    NodeExists = -110, "znode exists";
    /// The znode has children.
    NotEmpty = -111, "znode has children";
    /// The session has ended.
    SessionExpired = -112, "session expired";
    /// An invalid callback was specified.
    InvalidCallback = -113, "invalid callback";
    /// The ACL is not well formed.
    InvalidAcl = -114, "invalid ACL";
    /// The credential was refused, or its scheme is not supported.
    AuthFailed = -115, "authentication failed";
    /// The session is attached to another connection.
    SessionMoved = -118, "session moved to another connection";
    /// A write on a read-only server.
    NotReadOnly = -119, "server is read-only";
    /// Ephemeral znode on a local session.
    EphemeralOnLocalSession = -120, "ephemeral znode on a local session";
    /// There is no such watch.
    NoWatcher = -121, "no such watch";
    /// The request waited too long on the server.
    RequestTimeout = -122, "request timeout";
    /// Reconfiguration is switched off.
    ReconfigDisabled = -123, "reconfiguration is disabled";
    /// The server demands authentication before any other request.
    SessionClosedRequireSaslAuth = -124, "session closed: authentication required";
    /// A quota, the bound of a lock's queue or the leader's memory limit would be exceeded.
    QuotaExceeded = -125, "no room: a quota, a lock's queue, what one session may have, the memory limit of the servers or a majority of their disks is full";
    /// Too many requests at once: nothing was done, retry later.
    ThrottledOp = -127, "throttled";
}

impl std::error::Error for ErrorCode {}
