//! Replies: header, bodies, and the response to the handshake.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::acl::{Acl, Id};
use crate::error::ErrorCode;
use crate::ids::{SessionId, Xid, Zxid};
use crate::lock::{Few, QueuePosition};
use crate::stat::Stat;

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

/// Result of one operation of a multi.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpResult {
    /// Result of a create: the path.
    Create(String),
    /// Result of a create2 (type 15).
    Create2(String, Stat),
    /// Result of a createContainer (type 19).
    CreateContainer(String, Stat),
    /// Result of a createTTL (type 21).
    CreateTtl(String, Stat),
    /// Result of a delete: nothing.
    Delete,
    /// Result of a setData: the new Stat.
    SetData(Stat),
    /// Result of a check: nothing.
    Check,
    /// An error. In a failed multi: the code of this operation (`None` is 0: this operation alone would
    /// succeed). In a multiRead: the error of this read.
    Error(Option<ErrorCode>),
    /// Result of a getData in a multiRead.
    GetData(Option<Bytes>, Stat),
    /// Result of a getChildren in a multiRead.
    GetChildren(Vec<String>),
}

/// Body of a successful reply. Also the answer of the replicated state to a request of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// No body: delete, abandon, ping, auth, setWatches, checkWatches, removeWatches, closeSession.
    Empty,
    /// Reply to create and sync.
    Path(String),
    /// Reply to create2, createContainer and createTTL.
    PathStat(String, Stat),
    /// Reply to exists, setData and setACL.
    Stat(Stat),
    /// Reply to getData and reconfig.
    Data(Option<Bytes>, Stat),
    /// Reply to getACL: the list and the Stat.
    Acl(Vec<Acl>, Stat),
    /// Reply to getChildren and getEphemerals.
    Children(Vec<String>),
    /// Reply to getChildren2: names and Stat.
    Children2(Vec<String>, Stat),
    /// Reply to multi and multiRead, in the order of the operations.
    Multi(Vec<OpResult>),
    /// Reply to getAllChildrenNumber, to addWatch (always 0), and to ask (number of notified holders).
    Number(i32),
    /// Reply to sasl: the server's token.
    Sasl(Option<Bytes>),
    /// Reply to whoAmI: scheme and user of each identity.
    WhoAmI(Vec<Id>),
    /// Reply to acquire and convert: the state of one queue position per lock.
    QueuePositions(Few<QueuePosition>),
    /// Reply to release, verify and forceRelease: for each claim, true if the lock was held.
    Held(SmallVec<[bool; 8]>),
    /// Reply to report: a JSON document.
    Report(String),
}
