//! Numbers of the protocol, one type each: the compiler refuses swapped arguments.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

id!(
    /// Position of a change in the total order of all changes. Grows by one per command (not per log entry).
    Zxid(i64), "{:#x}"
);
id!(
    /// A client session. 0 on the wire means "none yet".
    SessionId(i64), "{:#x}"
);
id!(
    /// Number that a client chooses for a request; the reply repeats the number.
    Xid(i32), "{}"
);
id!(
    /// Number of changes of a znode's data (`version`), children (`cversion`) or ACL (`aversion`).
    Version(i32), "{}"
);
id!(
    /// A member of the cluster, as numbered in `cluster.toml`. Never a znode.
    NodeId(u64), "{}"
);
id!(
    /// Proof of holding a lock: the czxid of the holder's znode. Strictly larger for every later holder.
    FencingToken(i64), "{}"
);

/// Identity of a cluster: drawn at random when the cluster forms, and again when it is restored from a
/// backup. Distinguishes clusters with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ClusterId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(ClusterId)
    }
}

/// Random number of a data folder, created with the folder. An emptied folder returns with another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Parses the text form used in files.
    pub fn parse(text: &str) -> Option<Incarnation> {
        u128::from_str_radix(text, 16).ok().map(Incarnation)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Version {
    /// Matches any version in a conditional request.
    pub const ANY: Version = Version(-1);
}

impl SessionId {
    /// In a request: a new session. In a reply: the session is not valid.
    pub const NONE: SessionId = SessionId(0);
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    /// Parses the output of `Display`.
    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        digits.parse().map(FencingToken)
    }
}

impl Xid {
    /// A watch event, from server to client.
    pub const EVENT: Xid = Xid(-1);
    /// A ping and its reply.
    pub const PING: Xid = Xid(-2);
    /// Auth packet and its reply.
    pub const AUTH: Xid = Xid(-4);
    /// A [`crate::lock::Notice`], from the server to clients that acquire.
    pub const NOTICE: Xid = Xid(-20);
    /// setWatches and setWatches2, and their replies.
    pub const SET_WATCHES: Xid = Xid(-8);
}
