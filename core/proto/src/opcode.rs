//! Numbers of the operations (ZooKeeper's `ZooDefs.OpCode`), and the opcode of each request.
//!
//! Lists only opcodes for clients: createSession (-10) and deleteContainer (20) are internal to Apache's
//! servers and count as unknown here.

use crate::request::{Op, ReadOp, Request};

macro_rules! opcodes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// The `type` of a request header or of a multi's operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each is named as in the protocol")]
        pub enum OpCode { $($name,)* }
        impl OpCode {
            /// All opcodes, in the order of their declaration.
            pub const ALL: &'static [OpCode] = &[$(Self::$name,)*];
            /// Reads the number on the wire.
            pub fn from_i32(number: i32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
            /// Returns the number on the wire.
            pub fn as_i32(self) -> i32 { match self { $(Self::$name => $number,)* } }
            /// Returns the name used in the protocol's documents.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)* } }
        }
    };
}

opcodes! {
    Create = 1, "create";
    Delete = 2, "delete";
    Exists = 3, "exists";
    GetData = 4, "getData";
    SetData = 5, "setData";
    GetAcl = 6, "getACL";
    SetAcl = 7, "setACL";
    GetChildren = 8, "getChildren";
    Sync = 9, "sync";
    Ping = 11, "ping";
    GetChildren2 = 12, "getChildren2";
    Check = 13, "check";
    Multi = 14, "multi";
    Create2 = 15, "create2";
    Reconfig = 16, "reconfig";
    CheckWatches = 17, "checkWatches";
    RemoveWatches = 18, "removeWatches";
    CreateContainer = 19, "createContainer";
    CreateTtl = 21, "createTTL";
    MultiRead = 22, "multiRead";
    Auth = 100, "auth";
    SetWatches = 101, "setWatches";
    Sasl = 102, "sasl";
    GetEphemerals = 103, "getEphemerals";
    GetAllChildrenNumber = 104, "getAllChildrenNumber";
    SetWatches2 = 105, "setWatches2";
    AddWatch = 106, "addWatch";
    WhoAmI = 107, "whoAmI";
    CloseSession = -11, "closeSession";
    // Rowlock's own: see `lock`.
    Tagged = 1000, "tagged";
    Acquire = 1001, "acquire";
    Release = 1002, "release";
    Abandon = 1003, "abandon";
    Verify = 1004, "verify";
    Convert = 1005, "convert";
    ForceRelease = 1006, "forceRelease";
    SessionOptions = 1007, "sessionOptions";
    Report = 1008, "report";
    Operate = 1009, "operate";
    Ask = 1010, "ask";
}

impl OpCode {
    /// Returns true if [`Request::Tagged`] may carry the operation: all writes of a session into the tree or
    /// the queues. Excludes reconfig, whose `config_id` has the same effect, closeSession, after which no
    /// client repeats a request, and nested envelopes.
    pub fn may_be_tagged(self) -> bool {
        matches!(
            self,
            OpCode::Create
                | OpCode::Create2
                | OpCode::CreateContainer
                | OpCode::CreateTtl
                | OpCode::Delete
                | OpCode::SetData
                | OpCode::SetAcl
                | OpCode::Multi
                | OpCode::Acquire
                | OpCode::Release
                | OpCode::Abandon
                | OpCode::Convert
                | OpCode::ForceRelease
        )
    }
}

impl std::fmt::Display for OpCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Request {
    /// Returns the opcode of this request.
    pub fn opcode(&self) -> OpCode {
        match self {
            Request::Create(_) => OpCode::Create,
            Request::Delete { .. } => OpCode::Delete,
            Request::Exists(_) => OpCode::Exists,
            Request::GetData(_) => OpCode::GetData,
            Request::SetData(_) => OpCode::SetData,
            Request::GetAcl(_) => OpCode::GetAcl,
            Request::SetAcl(_) => OpCode::SetAcl,
            Request::GetChildren(_) => OpCode::GetChildren,
            Request::Sync(_) => OpCode::Sync,
            Request::Ping => OpCode::Ping,
            Request::GetChildren2(_) => OpCode::GetChildren2,
            Request::Check { .. } => OpCode::Check,
            Request::Multi(_) => OpCode::Multi,
            Request::Create2(_) => OpCode::Create2,
            Request::Reconfig { .. } => OpCode::Reconfig,
            Request::CheckWatches { .. } => OpCode::CheckWatches,
            Request::RemoveWatches { .. } => OpCode::RemoveWatches,
            Request::CreateContainer(_) => OpCode::CreateContainer,
            Request::CreateTtl(..) => OpCode::CreateTtl,
            Request::MultiRead(_) => OpCode::MultiRead,
            Request::Auth { .. } => OpCode::Auth,
            Request::SetWatches(_) => OpCode::SetWatches,
            Request::Sasl(_) => OpCode::Sasl,
            Request::GetEphemerals(_) => OpCode::GetEphemerals,
            Request::GetAllChildrenNumber(_) => OpCode::GetAllChildrenNumber,
            Request::SetWatches2(_) => OpCode::SetWatches2,
            Request::AddWatch { .. } => OpCode::AddWatch,
            Request::WhoAmI => OpCode::WhoAmI,
            Request::CloseSession => OpCode::CloseSession,
            Request::Tagged { .. } => OpCode::Tagged,
            Request::Acquire(_) => OpCode::Acquire,
            Request::Release(_) => OpCode::Release,
            Request::Abandon(_) => OpCode::Abandon,
            Request::Verify(_) => OpCode::Verify,
            Request::Convert { .. } => OpCode::Convert,
            Request::ForceRelease(_) => OpCode::ForceRelease,
            Request::SessionOptions(_) => OpCode::SessionOptions,
            Request::Report(_) => OpCode::Report,
            Request::Operate(_) => OpCode::Operate,
            Request::Ask(_) => OpCode::Ask,
        }
    }

    /// Returns true if the request changes the replicated state, and so goes through the log. False for sync
    /// (waits for the log but changes nothing), for check (refused outside a multi), and for ask (safe to
    /// repeat: the newest question counts).
    pub fn is_write(&self) -> bool {
        matches!(
            self,
            Request::Create(_)
                | Request::Delete { .. }
                | Request::SetData(_)
                | Request::SetAcl(_)
                | Request::Multi(_)
                | Request::Create2(_)
                | Request::Reconfig { .. }
                | Request::CreateContainer(_)
                | Request::CreateTtl(..)
                | Request::CloseSession
                | Request::Tagged { .. }
                | Request::Acquire(_)
                | Request::Release(_)
                | Request::Abandon(_)
                | Request::Convert { .. }
                | Request::ForceRelease(_)
        )
    }
}

impl Op {
    /// Returns the opcode of this operation.
    pub fn opcode(&self) -> OpCode {
        match self {
            Op::Create(_) => OpCode::Create,
            Op::Create2(_) => OpCode::Create2,
            Op::CreateContainer(_) => OpCode::CreateContainer,
            Op::CreateTtl(..) => OpCode::CreateTtl,
            Op::Delete { .. } => OpCode::Delete,
            Op::SetData(_) => OpCode::SetData,
            Op::Check { .. } => OpCode::Check,
        }
    }
}

impl ReadOp {
    /// Returns the opcode of this read.
    pub fn opcode(&self) -> OpCode {
        match self {
            ReadOp::GetData(_) => OpCode::GetData,
            ReadOp::GetChildren(_) => OpCode::GetChildren,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_one_to_one() {
        for opcode in OpCode::ALL {
            assert_eq!(OpCode::from_i32(opcode.as_i32()), Some(*opcode));
        }
        for internal in [-10, 0, 10, 20, 23, 108] {
            assert_eq!(OpCode::from_i32(internal), None);
        }
    }
}
