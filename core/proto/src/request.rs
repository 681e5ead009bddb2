//! Requests: every opcode that a client may send, as one closed enum.
//!
//! Paths are kept as they came: a bad path is an answer of the server (`BadArguments`), not a decoding error.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::ids::{SessionId, Version, Xid, Zxid};
use crate::lock::{Acquire, Ask, Attempt, Claim, Few, Mode, SessionOptions};

/// The first frame of a connection (44 or 45 bytes in its usual forms); it has no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The protocol version, always 0.
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
    /// The operation with its arguments.
    pub request: Request,
}

/// Arguments of create, create2 and createContainer.
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

/// Arguments of a setData request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetData {
    /// Path of the znode.
    pub path: String,
    /// The new data; `None` is null.
    pub data: Option<Bytes>,
    /// Expected version or [`Version::ANY`].
    pub version: Version,
}

/// Arguments of a setACL request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAcl {
    /// Path of the znode.
    pub path: String,
    /// The new list; `None` is null.
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
    /// Type 19: creates a container.
    CreateContainer(Create),
    /// Type 21, createTTL, with the time to live in milliseconds.
    CreateTtl(Create, i64),
    /// Type 2: deletes a znode without children.
    Delete {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
    /// Type 5: replaces a znode's data.
    SetData(SetData),
    /// Type 13: fails the multi unless the znode has this version.
    Check {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
}

/// One operation of a multiRead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp {
    /// Type 4: a znode's data and Stat.
    GetData(String),
    /// Type 8: names of a znode's children.
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
    /// Paths of child watches to re-arm.
    pub child: Vec<String>,
    /// Paths of persistent watches (setWatches2 only).
    pub persistent: Vec<String>,
    /// Persistent recursive watches (setWatches2).
    pub persistent_recursive: Vec<String>,
}

/// A path and whether to leave a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathWatch {
    /// Path of the znode.
    pub path: String,
    /// Whether to leave a watch.
    pub watch: bool,
}

/// Every operation that a client may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opcode 1, create: answered with the path.
    Create(Create),
    /// Opcode 2: deletes a znode without children.
    Delete {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
    /// Opcode 3, exists: the Stat, or NoNode.
    Exists(PathWatch),
    /// Opcode 4, getData: data and Stat.
    GetData(PathWatch),
    /// Opcode 5, setData: answered with the new Stat.
    SetData(SetData),
    /// Opcode 6, getACL of a path.
    GetAcl(String),
    /// Opcode 7, setACL: answered with the new Stat.
    SetAcl(SetAcl),
    /// Opcode 8, getChildren: names without Stat.
    GetChildren(PathWatch),
    /// Opcode 9, sync: answered when this node has applied what was committed before.
    Sync(String),
    /// Opcode 11, the client's heartbeat.
    Ping,
    /// Opcode 12, getChildren2: names and Stat.
    GetChildren2(PathWatch),
    /// 13: refused outside multi.
    Check {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
    /// Opcode 14, multi: all operations or none.
    Multi(Vec<Op>),
    /// Opcode 15, create2: answered with path and Stat.
    Create2(Create),
    /// Opcode 16: changes the cluster's members.
    Reconfig {
        /// Servers that join, separated by commas.
        joining: Option<String>,
        /// Ids of servers that leave, separated by commas.
        leaving: Option<String>,
        /// The whole new list.
        new_members: Option<String>,
        /// Expected version of the configuration, -1 for any.
        config_id: i64,
    },
    /// Opcode 17: tells whether the client has such a watch.
    CheckWatches {
        /// Path of the watch.
        path: String,
        /// 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// Opcode 18: removes watches of a path.
    RemoveWatches {
        /// Path of the watch.
        path: String,
        /// 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// Opcode 19, createContainer: answered with path and Stat.
    CreateContainer(Create),
    /// 21: with the time to live in milliseconds.
    CreateTtl(Create, i64),
    /// Opcode 22, multiRead: each read with a result of its own.
    MultiRead(Vec<ReadOp>),
    /// Opcode 100: adds an identity to the connection.
    Auth {
        /// The type field, always 0.
        auth_type: i32,
        /// The scheme, such as `digest`.
        scheme: String,
        /// The credential, in the form of its scheme.
        auth: Bytes,
    },
    /// Opcode 101: re-arms one-shot watches after a reconnect.
    SetWatches(SetWatches),
    /// Opcode 102: a token of the SASL negotiation.
    Sasl(Option<Bytes>),
    /// Opcode 103: the session's ephemeral znodes below a prefix.
    GetEphemerals(String),
    /// Opcode 104: the number of all descendants.
    GetAllChildrenNumber(String),
    /// Opcode 105: as 101, persistent watches included.
    SetWatches2(SetWatches),
    /// Opcode 106: registers a persistent watch.
    AddWatch {
        /// Path of the watch.
        path: String,
        /// 0 persistent, 1 persistent recursive.
        mode: i32,
    },
    /// Opcode 107: the connection's identities.
    WhoAmI,
    /// Opcode -11: ends the session.
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
        /// The place that is held now.
        claim: Claim,
        /// In which mode from now on.
        mode: Mode,
        /// For a conversion that takes a new place: the name of its znode before the server's number.
        prefix: String,
    },
    /// Opcode 1006: ends another session's hold. Needs DELETE on the lock's znode.
    ForceRelease(Claim),
    /// Opcode 1007: options of the connection's session.
    SessionOptions(SessionOptions),
    /// 1008: a JSON document, by the path and query of the HTTP interface.
    Report(String),
    /// 1009: what an operator has a node do, as path and query. For superusers. Answered with JSON.
    Operate(String),
    /// 1010: asks the holders of a lock to give it back.
    Ask(Ask),
}
