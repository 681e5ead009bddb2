//! Intended differences: Rowlock answers as ZooKeeper 3.9; the reference is ZooKeeper 3.8.0.
//!
//! Invariant: [`KNOWN`] lists everything that the comparison leaves out or the scripts never send because of
//! a dialect.

use rowlock_proto::response::OpResult;
use rowlock_proto::{ErrorCode, OpCode, Request};

/// Each difference, with its treatment.
pub const KNOWN: &[(&str, &str)] = &[
    ("the header of an event holds -1 (3.8) or the zxid of the change (3.9)", "not compared"),
    ("a create2 in a multi is answered as a create (3.8) or with its Stat (3.9)", "the Stat is not compared"),
    (
        "exists needs no permission (3.8) or READ (3.9); events go to all clients (3.8) or to readers (3.9)",
        "scripts with ACLs that forbid reading set no watches, and in these scripts a refused exists equals a \
         successful one",
    ),
    (
        "one-shot, persistent and recursive watches of one connection on one path replace one another (3.8, \
         ZOOKEEPER-4466) or live beside one another (3.9)",
        "each path has one kind of watch per client; persistent ones are removed with type 3 (ZOOKEEPER-4471)",
    ),
    (
        "checkWatches finds the watches of other connections (3.8) or only its own (3.9)",
        "sent only where there is one client",
    ),
    (
        "a mode with a time to live where a multi has none is a failure of its operation (3.8) or makes the multi \
         unreadable (master)",
        "not sent",
    ),
    (
        "the server checks writes sent after a setACL without waiting for its reply against the new list, or \
         sometimes against the old list (3.8: its pipeline misses the change)",
        "scripts wait for the reply to a setACL before the next request; a leader that lags behind its follower still \
         causes an unsteady difference in about one of 10,000 scripts, and so does its sync",
    ),
    (
        "bytes of a string that are not UTF-8 are replaced (ZooKeeper) or make the request unreadable (Rowlock)",
        "not sent",
    ),
    ("removeWatches knows the types 1 to 3 (3.8) or 1 to 5 (3.9)", "4 and 5 are not sent"),
    (
        "a check outside multi is logged and breaks the ensemble (3.8.0, ZOOKEEPER-2623) or is refused (3.9.3)",
        "not sent",
    ),
    (
        "createTTL without a TTL mode and with a negative time ends the server's pipeline (3.8.0)",
        "such times are not sent",
    ),
    (
        "the zxid in the header of a read or of a failed request includes unrelated changes of the cluster",
        "checked only to grow, and to be at least the zxids of the body",
    ),
    (
        "children, ephemerals, identities, entries of a list and the events of one closed session have no order",
        "sorted",
    ),
    ("the reference closes the connection on Rowlock's own opcodes (1000 and above)", "not sent"),
    ("wall clocks", "each change has one time, and later changes have no earlier times"),
];

/// Returns a result of a multi in the form common to both dialects.
pub fn op_result(result: OpResult) -> OpResult {
    match result {
        OpResult::Create2(path, _) => OpResult::Create(path),
        other => other,
    }
}

/// Returns true if the reply depends on the dialect, in scripts with ACLs that forbid reading.
pub fn is_open_to_dialect(opcode: i32, err: Option<ErrorCode>, restrictive: bool) -> bool {
    restrictive && opcode == OpCode::Exists.as_i32() && matches!(err, None | Some(ErrorCode::NoAuth))
}

/// Returns true if the header of a successful reply has the zxid of the request's own change.
pub fn header_has_own_zxid(request: OpCode) -> bool {
    matches!(
        request,
        OpCode::Create
            | OpCode::Create2
            | OpCode::CreateContainer
            | OpCode::CreateTtl
            | OpCode::Delete
            | OpCode::SetData
    )
}

/// Returns true for requests that would break the reference server. Scripts never send such a request.
pub fn is_deadly(request: &Request) -> bool {
    use rowlock_proto::CreateMode;
    match request {
        Request::Check { .. } => true,
        Request::CreateTtl(create, ttl_ms) => {
            *ttl_ms < 0 && CreateMode::from_flags(create.flags).is_some_and(|mode| !mode.has_ttl())
        }
        _ => false,
    }
}
