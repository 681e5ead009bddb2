//! Replies: header, bodies, and the answer to the handshake.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::acl::{Acl, Id};
use crate::error::ErrorCode;
use crate::ids::{SessionId, Xid, Zxid};
use crate::lock::{Few, PlaceState};
use crate::stat::Stat;

/// The answer to [`crate::request::ConnectRequest`]; it has no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The protocol version, always 0.
    pub protocol_version: i32,
    /// The negotiated session timeout in milliseconds; 0: the session is not valid.
    pub timeout_ms: i32,
    /// The session, or 0.
    pub session_id: SessionId,
    /// The session's password, 16 bytes.
    pub password: Bytes,
    /// The server is read-only. `None` leaves the byte out (for clients that did not send theirs).
    pub read_only: Option<bool>,
}

/// Header of every reply and event (16 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request's, or one of the special ones.
    pub xid: Xid,
    /// The last zxid that the server had applied.
    pub zxid: Zxid,
    /// 0 or the code of an error; with an error there is no body.
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
    /// In a multi that failed: the code (`None` is 0: would have succeeded). In a multiRead: that read's
    /// error.
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
    /// getAllChildrenNumber, addWatch's `int err = 0`, and how many holders ask has reached.
    Number(i32),
    /// Reply to sasl: the server's token.
    Sasl(Option<Bytes>),
    /// whoAmI: scheme and user.
    WhoAmI(Vec<Id>),
    /// acquire, convert: the state of one place per lock.
    PlaceStates(Few<PlaceState>),
    /// release, verify: for each claim, whether it was (is) held. forceRelease: one.
    Held(SmallVec<[bool; 8]>),
    /// Reply to report: a JSON document.
    Report(String),
}
