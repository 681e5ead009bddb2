//! Requests: every opcode that a client may send, as one closed enum.
//!
//! Paths are kept as they came: a bad path is an answer of the server (`BadArguments`), not a decoding error.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::ids::{SessionId, Version, Xid, Zxid};
use crate::lock::{Acquire, Attempt, Claim, Few, Mode, SessionOptions};

/// The first frame of a connection (44 or 45 bytes in its usual forms); it has no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Always 0.
    pub protocol_version: i32,
    /// The last zxid that this client saw anywhere.
    pub last_zxid_seen: Zxid,
    /// The session timeout asked for, in milliseconds.
    pub timeout_ms: i32,
    /// 0 for a new session.
    pub session_id: SessionId,
    /// Proof for an existing session.
    pub password: Bytes,
    /// The client accepts a read-only server. `None`: the byte was missing (clients of the 3.3 era).
    pub read_only: Option<bool>,
}

/// A framed request: header and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Echoed in the reply.
    pub xid: Xid,
    /// The body.
    pub request: Request,
}

/// create, create2, createContainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Full path; the prefix of the name for sequential znodes.
    pub path: String,
    /// `None` (null) and empty are different and kept apart.
    pub data: Option<Bytes>,
    /// `None`: a null vector.
    pub acl: Option<Arc<[Acl]>>,
    /// `CreateMode` number; see [`crate::create_mode`].
    pub flags: i32,
}

/// setData.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetData {
    /// Path of the znode.
    pub path: String,
    /// New data.
    pub data: Option<Bytes>,
    /// Expected version or [`Version::ANY`].
    pub version: Version,
}

/// setACL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAcl {
    /// Path of the znode.
    pub path: String,
    /// New list.
    pub acl: Option<Arc<[Acl]>>,
    /// Expected aversion or [`Version::ANY`].
    pub version: Version,
}

/// One operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Type 1: answered with the path.
    Create(Create),
    /// Type 15: answered with path and Stat.
    Create2(Create),
    /// Type 19.
    CreateContainer(Create),
    /// Type 21.
    CreateTtl(Create, i64),
    /// Type 2.
    Delete {
        /// Path of the znode.
        path: String,
        /// Expected version.
        version: Version,
    },
    /// Type 5.
    SetData(SetData),
    /// Type 13.
    Check {
        /// Path of the znode.
        path: String,
        /// Expected version.
        version: Version,
    },
}

/// One operation of a multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp {
    /// Type 4.
    GetData(String),
    /// Type 8.
    GetChildren(String),
}

/// setWatches and setWatches2: the watches of a client that comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetWatches {
    /// The last zxid that the client saw.
    pub relative_zxid: Zxid,
    /// Data watches (on znodes that existed).
    pub data: Vec<String>,
    /// Exist watches (on znodes that did not).
    pub exist: Vec<String>,
    /// Child watches.
    pub child: Vec<String>,
    /// Persistent watches (setWatches2).
    pub persistent: Vec<String>,
    /// Persistent recursive watches (setWatches2).
    pub persistent_recursive: Vec<String>,
}

/// A path and whether to leave a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathWatch {
    /// Path of the znode.
    pub path: String,
    /// Leave a watch.
    pub watch: bool,
}

/// All opcodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// 1.
    Create(Create),
    /// 2.
    Delete {
        /// Path of the znode.
        path: String,
        /// Expected version.
        version: Version,
    },
    /// 3.
    Exists(PathWatch),
    /// 4.
    GetData(PathWatch),
    /// 5.
    SetData(SetData),
    /// 6.
    GetAcl(String),
    /// 7.
    SetAcl(SetAcl),
    /// 8.
    GetChildren(PathWatch),
    /// 9.
    Sync(String),
    /// 11.
    Ping,
    /// 12.
    GetChildren2(PathWatch),
    /// 13: refused outside multi.
    Check {
        /// Path of the znode.
        path: String,
        /// Expected version.
        version: Version,
    },
    /// 14.
    Multi(Vec<Op>),
    /// 15.
    Create2(Create),
    /// 16.
    Reconfig {
        /// Servers that join.
        joining: Option<String>,
        /// Servers that leave.
        leaving: Option<String>,
        /// The whole new list.
        new_members: Option<String>,
        /// Expected version of the configuration, -1 for any.
        config_id: i64,
    },
    /// 17.
    CheckWatches {
        /// Path of the watch.
        path: String,
        /// 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// 18.
    RemoveWatches {
        /// Path of the watch.
        path: String,
        /// 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// 19.
    CreateContainer(Create),
    /// 21: with the time to live in milliseconds.
    CreateTtl(Create, i64),
    /// 22.
    MultiRead(Vec<ReadOp>),
    /// 100.
    Auth {
        /// Always 0.
        auth_type: i32,
        /// `digest`, ...
        scheme: String,
        /// The secret.
        auth: Bytes,
    },
    /// 101.
    SetWatches(SetWatches),
    /// 102.
    Sasl(Option<Bytes>),
    /// 103.
    GetEphemerals(String),
    /// 104.
    GetAllChildrenNumber(String),
    /// 105.
    SetWatches2(SetWatches),
    /// 106.
    AddWatch {
        /// Path of the watch.
        path: String,
        /// 0 persistent, 1 persistent recursive.
        mode: i32,
    },
    /// 107.
    WhoAmI,
    /// -11.
    CloseSession,
    /// 1000: a write that takes effect once, however often it is sent in one session.
    Tagged {
        /// Rises with every new write of the session; a write that is sent again keeps its own.
        id: u64,
        /// All ids up to this one are answered: their outcomes may be forgotten.
        acked: u64,
        /// A write that [may be tagged](crate::OpCode::may_be_tagged).
        request: Box<Request>,
    },
    /// 1001: places in the queues of one lock or of several at once, all or none.
    Acquire(Few<Acquire>),
    /// 1002: gives back what is held; in one command.
    Release(Few<Claim>),
    /// 1003: leaves the queues, whatever the state of the place; nothing to do is no error.
    Abandon(Vec<Attempt>),
    /// 1004: which of these are held, linearizable.
    Verify(Few<Claim>),
    /// 1005: holds in another mode, without leaving the queue.
    Convert {
        /// What is held.
        claim: Claim,
        /// In which mode from now on.
        mode: Mode,
        /// For a conversion that takes a new place: the name of its znode before the server's number.
        prefix: String,
    },
    /// 1006: ends somebody else's hold. Needs DELETE on the lock's znode.
    ForceRelease(Claim),
    /// 1007.
    SessionOptions(SessionOptions),
    /// 1008: a JSON document, by the path and query of the HTTP interface.
    Report(String),
    /// 1009: what an operator has a node do, as path and query. For superusers. Answered with JSON.
    Operate(String),
}
