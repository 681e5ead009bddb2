//! Numbers of the operations (ZooKeeper's `ZooDefs.OpCode`), and the opcode of each request.
//!
//! Lists only opcodes for clients: createSession (-10) and deleteContainer (20) are internal to Apache's
//! servers and count as unknown here.

pub use crate::request::OpCode;

use crate::request::Request;

/// Declares all requests: fields, number, and the name in the protocol's documents.
macro_rules! requests {
    ($(#[$meta:meta])* pub enum Request { $(
        $(#[$doc:meta])* $name:ident $(($($tuple:tt)+))? $({ $($fields:tt)+ })?
            = $number:literal, $text:literal;
    )+ }) => {
        /// The `type` of a request header or of a multi's operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum OpCode { $($(#[$doc])* $name,)+ }

        impl OpCode {
            /// All opcodes, in the order of their declaration.
            pub const ALL: &'static [OpCode] = &[$(Self::$name,)+];

            /// Reads the number on the wire.
            pub fn from_i32(number: i32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            /// Returns the number on the wire.
            pub fn as_i32(self) -> i32 { match self { $(Self::$name => $number,)+ } }

            /// Returns the name used in the protocol's documents.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)+ } }
        }

        record! {
            $(#[$meta])* pub enum Request by OpCode { $(
                $(#[$doc])* $name $(($($tuple)+))? $({ $($fields)+ })? = $name,
            )+ }
        }

        impl Request {
            /// Returns the opcode of this request.
            pub fn opcode(&self) -> OpCode { match self { $(Self::$name { .. } => OpCode::$name,)+ } }
        }
    };
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

impl OpCode {
    /// Returns whether requests of this opcode go through the log as they are. [`Request::Tagged`] does not:
    /// the write in it goes, beside its number. Nor does reconfig, which Raft has entries of its own for.
    pub fn is_logged(self) -> bool {
        self.may_be_tagged()
            || matches!(self, OpCode::Sync | OpCode::Verify | OpCode::Ask | OpCode::CloseSession)
    }
}

impl std::fmt::Display for OpCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Request {
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
