//! A script: the steps of a few clients, one after another, below one path. Made by `generate`, run by
//! `player`, shrunk by `minimise`. It holds no answers and knows no server.

use bytes::{BufMut, Bytes, BytesMut};
use rowlock_proto::request::SetWatches;
use rowlock_proto::{OpCode, Request, RequestFrame, Xid, Zxid, encode, path};

/// Length and header of an encoded request.
const PREFIX_BYTES: usize = 12;

/// What a few clients do.
#[derive(Clone, Debug)]
pub struct Script {
    /// Everything happens at and below this path, which the player creates with its parent.
    pub root: String,
    /// For each client the server that it connects to (an index, taken modulo the number of servers).
    pub servers: Vec<usize>,
    pub steps: Vec<Step>,
    /// Lists of the script may forbid reading, so `exists` differs between dialects (see `dialect`).
    pub restrictive: bool,
}

/// One thing that one client does.
#[derive(Clone, Debug)]
pub struct Step {
    pub slot: usize,
    pub action: Action,
}

/// What a client can do.
#[derive(Clone, Debug)]
pub enum Action {
    Send {
        /// Type in the header; decides how the reply is read.
        opcode: i32,
        /// What follows the header.
        body: Bytes,
        text: String,
        /// The answer must be there before anything else happens: its place among others is not certain, or
        /// the connection may end with it.
        alone: bool,
    },
    /// Sends setWatches or setWatches2, whose zxid is known only when it is sent.
    SetWatches {
        /// The last zxid that the client pretends to have seen.
        relative: Relative,
        /// The lists; its zxid is not used.
        watches: SetWatches,
        two: bool,
    },
    /// Breaks the connection off and comes back.
    Reconnect(Comeback),
    /// closeSession; the next step of this client opens a new one.
    Close,
}

/// The zxid of a setWatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relative {
    Zero,
    /// The largest zxid of a reply that this client had.
    LastSeen,
    Future,
}

/// How a client comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comeback {
    Resume,
    /// To its session on the next server.
    Move,
    /// First with a password that is not the session's, then to its session.
    WrongPassword,
    /// First to a session that does not exist, then to its own.
    NoSuchSession,
    /// With a new session; the old one is left to expire.
    Fresh,
}

impl Script {
    /// What only this script uses: the parent of its root.
    pub fn above(&self) -> &str {
        path::parent(&self.root).expect("a root has a parent")
    }
}

impl Action {
    /// A request as clients send it.
    pub fn request(request: &Request) -> Action {
        let opcode = request.opcode();
        Action::Send {
            opcode: opcode.as_i32(),
            body: body(request),
            text: format!("{request:?}"),
            alone: matches!(opcode, OpCode::Auth | OpCode::Ping | OpCode::Sasl | OpCode::SetAcl),
        }
    }

    /// Bytes that need not be a request.
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

/// The body of a setWatches with the zxid that the client has seen.
pub fn set_watches(watches: &SetWatches, two: bool, relative_zxid: Zxid) -> (OpCode, Bytes) {
    let watches = SetWatches { relative_zxid, ..watches.clone() };
    let request = if two { Request::SetWatches2(watches) } else { Request::SetWatches(watches) };
    (request.opcode(), body(&request))
}

/// A request without its header.
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
