//! Requests: every operation that a client may send, as one closed enum.
//!
//! Decoding keeps paths as received: the server answers a bad path (`BadArguments`).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::ids::{SessionId, Version, Xid, Zxid};
use crate::lock::{Acquire, Ask, Attempt, Claim, Few, Mode, SessionOptions};
use crate::multi::{UntilEnd, Unwatched};

record! {
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
        /// True if the client accepts a read-only server. `None`: the byte is missing (clients of the 3.3
        /// era).
        pub read_only: Option<bool>,
    }
}

/// A framed request: header and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Number that the reply repeats.
    pub xid: Xid,
    /// The operation with its arguments.
    pub request: Request,
}

record! {
    /// Arguments of create, create2 and createContainer.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Create {
        /// Full path; for sequential znodes the path before the server's number.
        pub path: String,
        /// Data of the znode. `None` (null) and empty are different.
        pub data: Option<Bytes>,
        /// ACL of the znode; `None`: a null vector.
        pub acl: Option<Arc<[Acl]>>,
        /// Number of the mode; see [`CreateMode`].
        pub flags: i32,
    }
}

record! {
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
}

record! {
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
}

record! {
    /// One operation of a multi.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Op {
        /// Type 1: replies with the path.
        Create(create: Create) = 1,
        /// Type 15: replies with path and Stat.
        Create2(create: Create) = 15,
        /// Type 19: creates a container.
        CreateContainer(create: Create) = 19,
        /// Type 21, createTTL, with the time to live in milliseconds.
        CreateTtl(create: Create, ttl_ms: i64) = 21,
        /// Type 2: deletes a znode without children.
        Delete {
            /// Path of the znode.
            path: String,
            /// Version that the znode must have.
            version: Version,
        } = 2,
        /// Type 5: replaces a znode's data.
        SetData(set: SetData) = 5,
        /// Type 13: fails the multi unless the znode has this version.
        Check {
            /// Path of the znode.
            path: String,
            /// Version that the znode must have.
            version: Version,
        } = 13,
    }
}

record! {
    /// One operation of a multiRead.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ReadOp {
        /// Type 4: a znode's data and Stat.
        GetData(path: String as Unwatched) = 4,
        /// Type 8: names of a znode's children.
        GetChildren(path: String as Unwatched) = 8,
    }
}

record! {
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
}

/// The form of setWatches: the lists of setWatches2 are left out.
struct OneShot;

wire! {
    SetWatches as OneShot, 8 + 3 * 4,
        |r| Ok(SetWatches {
            relative_zxid: Zxid::read(r)?,
            data: Vec::read(r)?,
            exist: Vec::read(r)?,
            child: Vec::read(r)?,
            ..SetWatches::default()
        }),
        |watches, out| {
            Zxid::write(&watches.relative_zxid, out);
            [&watches.data, &watches.exist, &watches.child].iter().for_each(|paths| Vec::write(paths, out));
        },
        SetWatches::strategy().prop_map(|watches| SetWatches {
            persistent: Vec::new(),
            persistent_recursive: Vec::new(),
            ..watches
        });
}

record! {
    /// A path, with an optional watch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PathWatch {
        /// Path of the znode.
        pub path: String,
        /// True to leave a watch.
        pub watch: bool,
    }
}

requests! {
    /// Every operation that a client may request.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Request {
        /// Opcode 1, create: replies with the path.
        Create(create: Create) = 1, "create";
        /// Opcode 2: deletes a znode without children.
        Delete {
            /// Path of the znode.
            path: String,
            /// Version that the znode must have.
            version: Version,
        } = 2, "delete";
        /// Opcode 3, exists: replies with the Stat, or with NoNode.
        Exists(path_watch: PathWatch) = 3, "exists";
        /// Opcode 4, getData: data and Stat.
        GetData(path_watch: PathWatch) = 4, "getData";
        /// Opcode 5, setData: replies with the new Stat.
        SetData(set: SetData) = 5, "setData";
        /// Opcode 6, getACL of a path.
        GetAcl(path: String) = 6, "getACL";
        /// Opcode 7, setACL: replies with the new Stat.
        SetAcl(set: SetAcl) = 7, "setACL";
        /// Opcode 8, getChildren: names without Stat.
        GetChildren(path_watch: PathWatch) = 8, "getChildren";
        /// Opcode 9, sync: replies after this node has applied all changes committed before the request.
        Sync(path: String) = 9, "sync";
        /// Opcode 11: keeps the session alive.
        Ping = 11, "ping";
        /// Opcode 12, getChildren2: names and Stat.
        GetChildren2(path_watch: PathWatch) = 12, "getChildren2";
        /// Opcode 13, check: refused outside a multi.
        Check {
            /// Path of the znode.
            path: String,
            /// Version that the znode must have.
            version: Version,
        } = 13, "check";
        /// Opcode 14, multi: all operations or none.
        Multi(ops: Vec<Op> as UntilEnd) = 14, "multi";
        /// Opcode 15, create2: replies with path and Stat.
        Create2(create: Create) = 15, "create2";
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
        } = 16, "reconfig";
        /// Opcode 17: checks that the client has the watch.
        CheckWatches {
            /// Path of the watch.
            path: String,
            /// Kind of the watch: 1 children, 2 data, 3 any.
            kind: i32,
        } = 17, "checkWatches";
        /// Opcode 18: removes watches of a path.
        RemoveWatches {
            /// Path of the watch.
            path: String,
            /// Kind of the watch: 1 children, 2 data, 3 any.
            kind: i32,
        } = 18, "removeWatches";
        /// Opcode 19, createContainer: replies with path and Stat.
        CreateContainer(create: Create) = 19, "createContainer";
        /// Opcode 21, createTTL, with the time to live in milliseconds.
        CreateTtl(create: Create, ttl_ms: i64) = 21, "createTTL";
        /// Opcode 22, multiRead: every read has its own result.
        MultiRead(ops: Vec<ReadOp> as UntilEnd) = 22, "multiRead";
        /// Opcode 100: adds an identity to the connection.
        Auth {
            /// The type field, always 0.
            auth_type: i32,
            /// The scheme, such as `digest`.
            scheme: String,
            /// The credential, in the form of its scheme.
            auth: Bytes,
        } = 100, "auth";
        /// Opcode 101: re-arms one-shot watches after a reconnect.
        SetWatches(watches: SetWatches as OneShot) = 101, "setWatches";
        /// Opcode 102: a token of the SASL negotiation.
        Sasl(token: Option<Bytes>) = 102, "sasl";
        /// Opcode 103: the session's ephemeral znodes below a prefix.
        GetEphemerals(prefix: String) = 103, "getEphemerals";
        /// Opcode 104: the number of all descendants.
        GetAllChildrenNumber(path: String) = 104, "getAllChildrenNumber";
        /// Opcode 105: opcode 101 with persistent watches.
        SetWatches2(watches: SetWatches) = 105, "setWatches2";
        /// Opcode 106: registers a persistent watch.
        AddWatch {
            /// Path of the watch.
            path: String,
            /// Mode of the watch: 0 persistent, 1 persistent recursive.
            mode: i32,
        } = 106, "addWatch";
        /// Opcode 107: the connection's identities.
        WhoAmI = 107, "whoAmI";
        /// Opcode -11: ends the session.
        CloseSession = -11, "closeSession";
        /// Opcode 1000: a write that takes effect once per session, however often the client sends the write.
        Tagged {
            /// Number of the write: grows with every new write of the session, and stays the same for a
            /// repetition.
            id: u64,
            /// The client has the replies up to this id: the state may drop their outcomes.
            acked: u64,
            /// A write that [may be tagged](crate::OpCode::may_be_tagged).
            request: Box<Request>,
        } = 1000, "tagged";
        /// Opcode 1001: enters the queues of one or several locks; all or none.
        Acquire(all: Few<Acquire>) = 1001, "acquire";
        /// Opcode 1002: releases held locks in one command.
        Release(claims: Few<Claim>) = 1002, "release";
        /// Opcode 1003: leaves the queues, in whatever state; a missing position is no error.
        Abandon(attempts: Vec<Attempt>) = 1003, "abandon";
        /// Opcode 1004: checks which claims hold their locks. Linearizable.
        Verify(claims: Few<Claim>) = 1004, "verify";
        /// Opcode 1005: changes the mode of a hold without leaving the queue.
        Convert {
            /// The position that holds the lock.
            claim: Claim,
            /// The new mode of the hold.
            mode: Mode,
            /// Name of the new queue znode before the server's number, for a conversion that needs a new
            /// position.
            prefix: String,
        } = 1005, "convert";
        /// Opcode 1006: ends another session's hold. Needs DELETE on the lock's znode.
        ForceRelease(claim: Claim) = 1006, "forceRelease";
        /// Opcode 1007: options of the connection's session.
        SessionOptions(options: SessionOptions) = 1007, "sessionOptions";
        /// Opcode 1008: requests a JSON document by the path and query of the HTTP interface.
        Report(query: String) = 1008, "report";
        /// Opcode 1009: an operator's command to a node, as path and query. For superusers. Replies with
        /// JSON.
        Operate(query: String) = 1009, "operate";
        /// Opcode 1010: asks the holders to release a lock.
        Ask(ask: Ask) = 1010, "ask";
    }
}

/// Kind of a znode to create: the flags of the create family (ZooKeeper's `CreateMode.java`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CreateMode {
    /// Flag 0: lives until a client deletes the znode.
    Persistent,
    /// Flag 1: ends with its session.
    Ephemeral,
    /// Flag 2: persistent, ten digits appended to the name.
    PersistentSequential,
    /// Flag 3: ephemeral, ten digits appended to the name.
    EphemeralSequential,
    /// Flag 4: removed after the deletion of its last child.
    Container,
    /// Flag 5: removed after its time to live without children and changes.
    PersistentWithTtl,
    /// Flag 6: as flag 5, ten digits appended to the name.
    PersistentSequentialWithTtl,
}

impl CreateMode {
    /// Reads the number on the wire; `None` is BadArguments.
    pub fn from_flags(flags: i32) -> Option<Self> {
        use CreateMode::*;
        [
            Persistent,
            Ephemeral,
            PersistentSequential,
            EphemeralSequential,
            Container,
            PersistentWithTtl,
            PersistentSequentialWithTtl,
        ]
        .get(usize::try_from(flags).ok()?)
        .copied()
    }

    /// Returns the number on the wire.
    pub fn flags(self) -> i32 {
        debug_assert_eq!(Self::from_flags(self as i32), Some(self), "the flags decode to another mode");
        self as i32
    }

    /// Returns true if the server appends a number to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialWithTtl
        )
    }

    /// Returns true if the znode ends with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Returns true if the server removes the znode after its time to live without children and changes.
    pub fn has_ttl(self) -> bool {
        matches!(self, Self::PersistentWithTtl | Self::PersistentSequentialWithTtl)
    }
}
