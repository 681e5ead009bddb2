//! Error codes of the protocol (`KeeperException.Code`), and the rights on locks that a refusal names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// A non-zero `err` of a reply header. [`ErrorCode::Other`] keeps unknown codes of newer servers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorCode { $($(#[$doc])* $name,)*
            /// A code that this version does not know.
            Other(i32),
            /// The rules of the lock do not grant this right. Sent as [`ErrorCode::NoAuth`], the code that
            /// every client knows.
            NoRight(Right),
        }
        impl ErrorCode {
            /// Returns the number on the wire.
            pub fn code(self) -> i32 { match self { $(Self::$name => $code,)* Self::Other(c) => c, Self::NoRight(_) => Self::NoAuth.code() } }
            /// Reads the number on the wire; 0 (no error) is `None`.
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
    /// A multi skipped this operation after an earlier failure.
    RuntimeInconsistency = -2, "not run: an earlier operation failed";
    /// The server's data are inconsistent.
    DataInconsistency = -3, "data inconsistency";
    /// The connection was lost; the request may have taken effect.
    ConnectionLoss = -4, "connection lost";
    /// The server cannot decode the body, or the request has no meaning here.
    MarshallingError = -5, "marshalling error";
    /// The server does not know or does not allow the operation.
    Unimplemented = -6, "unimplemented";
    /// The operation took too long.
    OperationTimeout = -7, "operation timeout";
    /// A path, flag or argument is invalid.
    BadArguments = -8, "bad arguments";
    /// No session has this id.
    UnknownSession = -12, "unknown session";
    /// The new configuration has no quorum.
    NewConfigNoQuorum = -13, "new configuration has no quorum";
    /// Another reconfiguration is under way.
    ReconfigInProgress = -14, "reconfiguration in progress";
    /// The znode does not exist.
    NoNode = -101, "no such znode";
    /// An ACL or a lock's rule does not permit the request.
    NoAuth = -102, "not permitted by the ACL or by the rules of the lock";
    /// The request names another version than the current one.
    BadVersion = -103, "version conflict";
    /// Ephemeral znodes have no children.
    NoChildrenForEphemerals = -108, "ephemeral znodes may not have children";
    /// The znode exists already.
    NodeExists = -110, "znode exists";
    /// The znode has children.
    NotEmpty = -111, "znode has children";
    /// The session has ended.
    SessionExpired = -112, "session expired";
    /// The request names an invalid callback.
    InvalidCallback = -113, "invalid callback";
    /// The ACL is not well formed.
    InvalidAcl = -114, "invalid ACL";
    /// The server refuses the credential, or does not support its scheme.
    AuthFailed = -115, "authentication failed";
    /// The session is attached to another connection.
    SessionMoved = -118, "session moved to another connection";
    /// The request writes, and the server is read-only.
    NotReadOnly = -119, "server is read-only";
    /// A local session cannot have ephemeral znodes.
    EphemeralOnLocalSession = -120, "ephemeral znode on a local session";
    /// The client has no such watch.
    NoWatcher = -121, "no such watch";
    /// The request waited too long on the server.
    RequestTimeout = -122, "request timeout";
    /// Reconfiguration is switched off.
    ReconfigDisabled = -123, "reconfiguration is disabled";
    /// The server demands authentication before any other request.
    SessionClosedRequireSaslAuth = -124, "session closed: authentication required";
    /// The request would exceed a quota, the bound of a lock's queue, a session's limits, the leader's memory
    /// limit or the disk space of a majority.
    QuotaExceeded = -125, "no room: the request exceeds a quota, the bound of a lock's queue, a session's limits, the servers' memory limit or the disk space of a majority";
    /// The server has too many requests and did nothing: retry later.
    ThrottledOp = -127, "throttled";
}

impl std::error::Error for ErrorCode {}

/// A right on a lock. Rules grant rights by the path of a lock and the identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Allows a queue position in any mode, and the znodes that the lock needs.
    Take,
    /// Allows questions to the holders without a deadline.
    Ask,
    /// Allows every way of ending another session's hold: forced releases, deadlines, deletions.
    Force,
    /// Allows reads of the lock and of its queue: znodes, watches, reports, history, events.
    See,
}

impl Right {
    /// All rights, in the order used in messages.
    pub const ALL: [Right; 4] = [Right::Take, Right::Ask, Right::Force, Right::See];

    /// Returns the name used in rules and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Take => "take",
            Right::Ask => "ask",
            Right::Force => "force",
            Right::See => "see",
        }
    }

    /// Returns an error text that names the missing right and the operator's next step.
    pub fn missing_on(self, lock: &str) -> String {
        format!("the right \"{self}\" on {lock} is missing; an operator can grant it with `rowlock acl set`")
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Right::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a right: use take, ask, force, or see"))
    }
}
