//! Replies: header, bodies, and the answer to the handshake.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::acl::{Acl, Id};
use crate::error::ErrorCode;
use crate::ids::{SessionId, Xid, Zxid};
use crate::lock::PlaceState;
use crate::stat::Stat;

/// The answer to [`crate::request::ConnectRequest`]; it has no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0.
    pub protocol_version: i32,
    /// The negotiated session timeout in milliseconds; 0: the session is not valid.
    pub timeout_ms: i32,
    /// The session, or 0.
    pub session_id: SessionId,
    /// 16 bytes.
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
    /// create.
    Create(String),
    /// create2 (type 15).
    Create2(String, Stat),
    /// createContainer (type 19).
    CreateContainer(String, Stat),
    /// createTTL (type 21).
    CreateTtl(String, Stat),
    /// delete.
    Delete,
    /// setData.
    SetData(Stat),
    /// check.
    Check,
    /// In a multi that failed: the code (`None` is 0: would have succeeded). In a multiRead: that read's
    /// error.
    Error(Option<ErrorCode>),
    /// multiRead: getData.
    GetData(Option<Bytes>, Stat),
    /// multiRead: getChildren.
    GetChildren(Vec<String>),
}

/// Body of a successful reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// No body: delete, ping, auth, setWatches, checkWatches, removeWatches, closeSession.
    Empty,
    /// create, sync.
    Path(String),
    /// create2, createContainer, createTTL.
    PathStat(String, Stat),
    /// exists, setData, setACL.
    Stat(Stat),
    /// getData, reconfig.
    Data(Option<Bytes>, Stat),
    /// getACL.
    Acl(Vec<Acl>, Stat),
    /// getChildren, getEphemerals.
    Children(Vec<String>),
    /// getChildren2.
    Children2(Vec<String>, Stat),
    /// multi, multiRead.
    Multi(Vec<OpResult>),
    /// getAllChildrenNumber, and addWatch's `int err = 0`.
    Number(i32),
    /// sasl.
    Sasl(Option<Bytes>),
    /// whoAmI: scheme and user.
    WhoAmI(Vec<Id>),
    /// acquire, convert: the state of one place per lock.
    PlaceStates(Vec<PlaceState>),
    /// release, verify: for each claim, whether it was (is) held. forceRelease: one.
    Held(Vec<bool>),
    /// report.
    Report(String),
}
