//! Frames from the server: replies with header and body, the response to the handshake, and watch events.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::acl::{Acl, Id};
use crate::error::ErrorCode;
use crate::ids::{SessionId, Version, Xid, Zxid};
use crate::lock::{Few, QueuePosition};
use crate::multi::UntilEnd;

record! {
    /// The response to a [`crate::request::ConnectRequest`], without a header.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ConnectResponse {
        /// The protocol version, always 0.
        pub protocol_version: i32,
        /// The negotiated session timeout in milliseconds; 0 if the session is not valid.
        pub timeout_ms: i32,
        /// The session; 0 if not valid.
        pub session_id: SessionId,
        /// The session's password, 16 bytes.
        pub password: Bytes,
        /// True if the server is read-only. `None` leaves the byte out, for clients that sent no such byte.
        pub read_only: Option<bool>,
    }
}

record! {
    /// Header of every reply and event (16 bytes).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReplyHeader {
        /// Xid of the request, or a special xid.
        pub xid: Xid,
        /// The last zxid applied by the server.
        pub zxid: Zxid,
        /// Error code of a failed request; `None` is 0. With an error there is no body.
        pub err: Option<ErrorCode>,
    }
}

record! {
    /// Result of one operation of a multi.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum OpResult {
        /// Result of a create: the path.
        Create(path: String) = 1,
        /// Result of a create2 (type 15).
        Create2(path: String, stat: Stat) = 15,
        /// Result of a createContainer (type 19).
        CreateContainer(path: String, stat: Stat) = 19,
        /// Result of a createTTL (type 21).
        CreateTtl(path: String, stat: Stat) = 21,
        /// Result of a delete: nothing.
        Delete = 2,
        /// Result of a setData: the new Stat.
        SetData(stat: Stat) = 5,
        /// Result of a check: nothing.
        Check = 13,
        /// An error. In a failed multi: the code of this operation (`None` is 0: this operation alone would
        /// succeed). In a multiRead: the error of this read.
        Error(err: Option<ErrorCode>) = -1,
        /// Result of a getData in a multiRead.
        GetData(data: Option<Bytes>, stat: Stat) = 4,
        /// Result of a getChildren in a multiRead.
        GetChildren(names: Vec<String>) = 8,
    }
}

record! {
    /// Body of a successful reply. Also the answer of the replicated state to a request of the log.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Response by OpCode {
        /// No body: delete, abandon, ping, auth, setWatches, checkWatches, removeWatches, closeSession.
        Empty = Delete | Ping | Check | CheckWatches | RemoveWatches | Auth | SetWatches | SetWatches2 | CloseSession
            | Abandon | SessionOptions | Tagged,
        /// Reply to create and sync.
        Path(path: String) = Create | Sync,
        /// Reply to create2, createContainer and createTTL.
        PathStat(path: String, stat: Stat) = Create2 | CreateContainer | CreateTtl,
        /// Reply to exists, setData and setACL.
        Stat(stat: Stat) = Exists | SetData | SetAcl,
        /// Reply to getData and reconfig.
        Data(data: Option<Bytes>, stat: Stat) = GetData | Reconfig,
        /// Reply to getACL: the list and the Stat.
        Acl(acl: Vec<Acl>, stat: Stat) = GetAcl,
        /// Reply to getChildren and getEphemerals.
        Children(names: Vec<String>) = GetChildren | GetEphemerals,
        /// Reply to getChildren2: names and Stat.
        Children2(names: Vec<String>, stat: Stat) = GetChildren2,
        /// Reply to multi and multiRead, in the order of the operations.
        Multi(results: Vec<OpResult> as UntilEnd) = Multi | MultiRead,
        /// Reply to getAllChildrenNumber, to addWatch (always 0), and to ask (number of notified holders).
        Number(number: i32) = GetAllChildrenNumber | AddWatch | Ask,
        /// Reply to sasl: the server's token.
        Sasl(token: Option<Bytes>) = Sasl,
        /// Reply to whoAmI: scheme and user of each identity.
        WhoAmI(ids: Vec<Id>) = WhoAmI,
        /// Reply to acquire and convert: the state of one queue position per lock.
        QueuePositions(positions: Few<QueuePosition>) = Acquire | Convert,
        /// Reply to release, verify and forceRelease: for each claim, true if the lock was held.
        Held(held: SmallVec<[bool; 8]>) = Release | Verify | ForceRelease,
        /// Reply to report: a JSON document.
        Report(document: String) = Report | Operate,
    }
}

record! {
    /// Metadata of a znode (68 bytes on the wire), with ZooKeeper's order of fields.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Stat {
        /// Zxid of the creation.
        pub czxid: Zxid,
        /// Zxid of the last change of the data.
        pub mzxid: Zxid,
        /// Wall clock of the creation, milliseconds since 1970.
        pub ctime_ms: i64,
        /// Wall clock of the last change of the data, milliseconds since 1970.
        pub mtime_ms: i64,
        /// Number of changes of the data.
        pub version: Version,
        /// Number of changes of the list of children.
        pub cversion: Version,
        /// Number of changes of the ACL.
        pub aversion: Version,
        /// Session that owns an ephemeral znode, else 0 (also for containers and TTL znodes).
        pub ephemeral_owner: SessionId,
        /// Length of the data, in bytes.
        pub data_length: i32,
        /// Number of direct children.
        pub num_children: i32,
        /// Zxid of the last change of the list of children (or of the creation).
        pub pzxid: Zxid,
    }
}

/// The kind of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// Created by clients when the state of their session changes.
    None,
    /// Number 1: the znode was created.
    NodeCreated,
    /// Number 2: the znode was deleted.
    NodeDeleted,
    /// Number 3: the znode's data was set.
    NodeDataChanged,
    /// Number 4: a child was created or deleted.
    NodeChildrenChanged,
}

impl EventType {
    /// Reads the number on the wire. Java clients create 5 to 7 locally; these numbers are never sent.
    pub fn from_i32(number: i32) -> Option<Self> {
        match number {
            -1 => Some(Self::None),
            1 => Some(Self::NodeCreated),
            2 => Some(Self::NodeDeleted),
            3 => Some(Self::NodeDataChanged),
            4 => Some(Self::NodeChildrenChanged),
            _ => None,
        }
    }

    /// Returns the number on the wire.
    pub fn as_i32(self) -> i32 {
        let number = match self {
            Self::None => -1,
            Self::NodeCreated => 1,
            Self::NodeDeleted => 2,
            Self::NodeDataChanged => 3,
            Self::NodeChildrenChanged => 4,
        };
        debug_assert_eq!(Self::from_i32(number), Some(self), "the number decodes to another event");
        number
    }
}

/// A watch event: a frame with xid -1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedEvent {
    /// Zxid of the change (3.9 dialect); -1 from servers before 3.9.
    pub zxid: Zxid,
    /// The kind of change.
    pub event_type: EventType,
    /// State of the client; always 3 (SyncConnected) from servers.
    pub state: i32,
    /// Full path on the server.
    pub path: String,
}

impl WatchedEvent {
    /// The `state` of all events from servers.
    pub const SYNC_CONNECTED: i32 = 3;
}
