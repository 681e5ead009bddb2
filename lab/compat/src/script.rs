//! A script: the steps of a few clients, one after another, below one path. Created by `generate`, run by
//! `player`, minimized by `minimise`. Contains no replies and names no server.

use bytes::{BufMut, Bytes, BytesMut};
use rowlock_proto::request::SetWatches;
use rowlock_proto::{OpCode, Request, RequestFrame, Xid, Zxid, encode, path};

/// Length and header of an encoded request.
const PREFIX_BYTES: usize = 12;

/// The steps of a few clients.
#[derive(Clone, Debug)]
pub struct Script {
    /// Path of the script's znodes: the steps stay at and below. The player creates the path with its parent.
    pub root: String,
    /// Server of each client: an index, modulo the number of servers.
    pub servers: Vec<usize>,
    pub steps: Vec<Step>,
    /// True if ACLs of the script may forbid reading: then `exists` differs between dialects (see `dialect`).
    pub restrictive: bool,
}

/// An action of a client.
#[derive(Clone, Debug)]
pub struct Step {
    pub slot: usize,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Send {
        /// Type in the header; determines how to decode the reply.
        opcode: i32,
        /// Bytes after the header.
        body: Bytes,
        text: String,
        /// True to wait for the reply before the next action: its position among other replies is not
        /// determined, or the connection may end with the reply.
        alone: bool,
    },
    /// Sends setWatches or setWatches2; the player fills in the zxid.
    SetWatches {
        /// The last zxid that the client claims to have seen.
        relative: Relative,
        /// Lists of watches; the zxid inside is ignored.
        watches: SetWatches,
        two: bool,
    },
    /// Drops the connection and reconnects.
    Reconnect(Comeback),
    /// Sends closeSession; the client's next step opens a new session.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relative {
    Zero,
    /// The largest zxid of the client's replies.
    LastSeen,
    Future,
}

/// Session and server of a reconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comeback {
    Resume,
    /// The client's session, on the next server.
    Move,
    /// First a wrong password, then the client's session.
    WrongPassword,
    /// First an unknown session, then the client's session.
    NoSuchSession,
    /// A new session; the old session expires.
    Fresh,
}

impl Script {
    /// Returns the parent of the root, which belongs to this script alone.
    pub fn above(&self) -> &str {
        path::parent(&self.root).expect("a root has a parent")
    }
}

impl Action {
    /// Returns a well-formed request.
    pub fn request(request: &Request) -> Action {
        let opcode = request.opcode();
        Action::Send {
            opcode: opcode.as_i32(),
            body: body(request),
            text: format!("{request:?}"),
            alone: matches!(opcode, OpCode::Auth | OpCode::Ping | OpCode::Sasl | OpCode::SetAcl),
        }
    }

    /// Returns arbitrary bytes, possibly not a request.
    pub fn raw(opcode: i32, body: Bytes, text: String) -> Action {
        Action::Send { opcode, body, text, alone: true }
    }

    pub fn describe(&self) -> String {
        match self {
            Action::Send { text, .. } => text.clone(),
            Action::SetWatches { relative, watches, two } => {
                format!("SetWatches{} since {relative:?} {watches:?}", if *two { "2" } else { "" })
            }
            Action::Reconnect(how) => format!("Reconnect {how:?}"),
            Action::Close => "CloseSession".to_owned(),
        }
    }
}

/// Returns the body of a setWatches with this zxid.
pub fn set_watches(watches: &SetWatches, two: bool, relative_zxid: Zxid) -> (OpCode, Bytes) {
    let watches = SetWatches { relative_zxid, ..watches.clone() };
    let request = if two { Request::SetWatches2(watches) } else { Request::SetWatches(watches) };
    (request.opcode(), body(&request))
}

/// Encodes a request without its header.
pub fn body(request: &Request) -> Bytes {
    let mut out = BytesMut::new();
    encode::request(&RequestFrame { xid: Xid(0), request: request.clone() }, &mut out);
    out.freeze().slice(PREFIX_BYTES..)
}

pub fn frame(xid: Xid, opcode: i32, body: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + body.len());
    let length = i32::try_from(body.len() + 8).expect("scripts are made of small frames");
    out.put_i32(length);
    out.put_i32(xid.0);
    out.put_i32(opcode);
    out.put_slice(body);
    out.freeze()
}
