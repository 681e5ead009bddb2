//! The numbers of the protocol, one type each, so that no two can be swapped.

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
    /// The client's own number of a request; the reply echoes it.
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

/// Which cluster this is: drawn at random when it is formed, and again when it is restored from a backup. Two
/// clusters of one name are told apart by it.
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

impl Version {
    /// In a conditional request: "whatever the version is".
    pub const ANY: Version = Version(-1);
}

impl SessionId {
    /// The answer to a session that is not valid, and the request for a new one.
    pub const NONE: SessionId = SessionId(0);
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    /// Reads what `Display` writes.
    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        digits.parse().map(FencingToken)
    }
}

impl Xid {
    /// Server to client: a watch event.
    pub const EVENT: Xid = Xid(-1);
    /// Heartbeat and its reply.
    pub const PING: Xid = Xid(-2);
    /// Auth packet and its reply.
    pub const AUTH: Xid = Xid(-4);
    /// Server to client, only to those who acquire: [`crate::lock::Notice`].
    pub const NOTICE: Xid = Xid(-20);
    /// setWatches and setWatches2, and their replies.
    pub const SET_WATCHES: Xid = Xid(-8);
}
