//! Requests: every operation that a client may send, as one closed enum.
//!
//! Decoding keeps paths as received: the server answers a bad path (`BadArguments`).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::ids::{SessionId, Version, Xid, Zxid};
use crate::lock::{Acquire, Ask, Attempt, Claim, Few, Mode, SessionOptions};

/// The first frame of a connection (usually 44 or 45 bytes), without a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The protocol version, always 0.
    pub protocol_version: i32,
    /// The newest zxid that the client has seen on any server.
    pub last_zxid_seen: Zxid,
    /// The requested session timeout in milliseconds.
    pub timeout_ms: i32,
    /// Session to resume; 0 for a new session.
    pub session_id: SessionId,
    /// Password of the session to resume.
    pub password: Bytes,
    /// True if the client accepts a read-only server. `None`: the byte is missing (clients of the 3.3 era).
    pub read_only: Option<bool>,
}

/// A framed request: header and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Number that the reply repeats.
    pub xid: Xid,
    /// The operation with its arguments.
    pub request: Request,
}

/// Arguments of create, create2 and createContainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Full path; for sequential znodes the path before the server's number.
    pub path: String,
    /// Data of the znode. `None` (null) and empty are different.
    pub data: Option<Bytes>,
    /// ACL of the znode; `None`: a null vector.
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
    /// Type 1: replies with the path.
    Create(Create),
    /// Type 15: replies with path and Stat.
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

/// setWatches and setWatches2: the watches that a reconnected client restores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetWatches {
    /// The last zxid that the client saw.
    pub relative_zxid: Zxid,
    /// Paths of data watches, set on existing znodes.
    pub data: Vec<String>,
    /// Paths of exist watches, set on missing znodes.
    pub exist: Vec<String>,
    /// Paths of child watches.
    pub child: Vec<String>,
    /// Paths of persistent watches (setWatches2 only).
    pub persistent: Vec<String>,
    /// Paths of persistent recursive watches (setWatches2 only).
    pub persistent_recursive: Vec<String>,
}

/// A path, with an optional watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathWatch {
    /// Path of the znode.
    pub path: String,
    /// True to leave a watch.
    pub watch: bool,
}

/// Every operation that a client may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opcode 1, create: replies with the path.
    Create(Create),
    /// Opcode 2: deletes a znode without children.
    Delete {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
    /// Opcode 3, exists: replies with the Stat, or with NoNode.
    Exists(PathWatch),
    /// Opcode 4, getData: data and Stat.
    GetData(PathWatch),
    /// Opcode 5, setData: replies with the new Stat.
    SetData(SetData),
    /// Opcode 6, getACL of a path.
    GetAcl(String),
    /// Opcode 7, setACL: replies with the new Stat.
    SetAcl(SetAcl),
    /// Opcode 8, getChildren: names without Stat.
    GetChildren(PathWatch),
    /// Opcode 9, sync: replies after this node has applied all changes committed before the request.
    Sync(String),
    /// Opcode 11: keeps the session alive.
    Ping,
    /// Opcode 12, getChildren2: names and Stat.
    GetChildren2(PathWatch),
    /// Opcode 13, check: refused outside a multi.
    Check {
        /// Path of the znode.
        path: String,
        /// Version that the znode must have.
        version: Version,
    },
    /// Opcode 14, multi: all operations or none.
    Multi(Vec<Op>),
    /// Opcode 15, create2: replies with path and Stat.
    Create2(Create),
    /// Opcode 16: changes the cluster's members.
    Reconfig {
        /// Joining servers, separated by commas.
        joining: Option<String>,
        /// Ids of leaving servers, separated by commas.
        leaving: Option<String>,
        /// The whole new list.
        new_members: Option<String>,
        /// Expected version of the configuration, -1 for any.
        config_id: i64,
    },
    /// Opcode 17: checks that the client has the watch.
    CheckWatches {
        /// Path of the watch.
        path: String,
        /// Kind of the watch: 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// Opcode 18: removes watches of a path.
    RemoveWatches {
        /// Path of the watch.
        path: String,
        /// Kind of the watch: 1 children, 2 data, 3 any.
        kind: i32,
    },
    /// Opcode 19, createContainer: replies with path and Stat.
    CreateContainer(Create),
    /// Opcode 21, createTTL, with the time to live in milliseconds.
    CreateTtl(Create, i64),
    /// Opcode 22, multiRead: every read has its own result.
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
    /// Opcode 105: opcode 101 with persistent watches.
    SetWatches2(SetWatches),
    /// Opcode 106: registers a persistent watch.
    AddWatch {
        /// Path of the watch.
        path: String,
        /// Mode of the watch: 0 persistent, 1 persistent recursive.
        mode: i32,
    },
    /// Opcode 107: the connection's identities.
    WhoAmI,
    /// Opcode -11: ends the session.
    CloseSession,
    /// Opcode 1000: a write that takes effect once per session, however often the client sends the write.
    Tagged {
        /// Number of the write: grows with every new write of the session, and stays the same for a
        /// repetition.
        id: u64,
        /// The client has the replies up to this id: the state may drop their outcomes.
        acked: u64,
        /// A write that [may be tagged](crate::OpCode::may_be_tagged).
        request: Box<Request>,
    },
    /// Opcode 1001: enters the queues of one or several locks; all or none.
    Acquire(Few<Acquire>),
    /// Opcode 1002: releases held locks in one command.
    Release(Few<Claim>),
    /// Opcode 1003: leaves the queues, in whatever state; a missing position is no error.
    Abandon(Vec<Attempt>),
    /// Opcode 1004: checks which claims hold their locks. Linearizable.
    Verify(Few<Claim>),
    /// Opcode 1005: changes the mode of a hold without leaving the queue.
    Convert {
        /// The position that holds the lock.
        claim: Claim,
        /// The new mode of the hold.
        mode: Mode,
        /// Name of the new queue znode before the server's number, for a conversion that needs a new
        /// position.
        prefix: String,
    },
    /// Opcode 1006: ends another session's hold. Needs DELETE on the lock's znode.
    ForceRelease(Claim),
    /// Opcode 1007: options of the connection's session.
    SessionOptions(SessionOptions),
    /// Opcode 1008: requests a JSON document by the path and query of the HTTP interface.
    Report(String),
    /// Opcode 1009: an operator's command to a node, as path and query. For superusers. Replies with JSON.
    Operate(String),
    /// Opcode 1010: asks the holders to release a lock.
    Ask(Ask),
}
