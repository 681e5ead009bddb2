//! Requests of clients on locks under rules and on znodes with closed ACLs, and their answers.

use rowlock_proto::report::Locks;
use rowlock_proto::{ErrorCode, Right, SessionId, Zxid, perms};

/// Folder of all locks under rules. No other workload uses this folder.
pub const GUARDED: &str = "/guarded";
/// Path of the znode of the rules, which only superusers see and change.
pub const RULES: &str = "/zookeeper/access";

/// Returns whether rules may name the lock at this path.
pub fn is_guarded(path: &str) -> bool {
    path.strip_prefix(GUARDED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Folder of all znodes with closed ACLs. No other workload uses this folder.
pub const CLOSED: &str = "/closed";

/// Returns whether the ACL of the znode at this path may be closed.
pub fn is_closed(path: &str) -> bool {
    path.strip_prefix(CLOSED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A right that a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// By the rules. `lock`: path of the lock, or of a folder of locks, or [`RULES`].
    Right { lock: String, right: Right },
    /// By a znode's ACL: one of these permissions.
    Perms { path: String, any_of: i32 },
}

impl Need {
    /// Returns whether the need is that of a read.
    pub fn is_sight(&self) -> bool {
        match self {
            Need::Right { right, .. } => *right == Right::See,
            Need::Perms { any_of, .. } => any_of & perms::READ != 0,
        }
    }
}

/// Credential of an HTTP request in a run whose nodes demand tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearer {
    /// Token of all clients for their own work.
    Worker,
    /// Token for forced releases.
    Operator,
    Reader,
    /// Token for the locks of one folder, which no client uses.
    Narrow,
    /// Operator's token that ended long ago.
    Ended,
    /// Text that no file of tokens contains.
    Unknown,
    /// Request without the header.
    Absent,
}

impl Bearer {
    pub const ALL: [Bearer; 7] = [
        Bearer::Worker,
        Bearer::Operator,
        Bearer::Reader,
        Bearer::Narrow,
        Bearer::Ended,
        Bearer::Unknown,
        Bearer::Absent,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Bearer::Worker => "worker",
            Bearer::Operator => "operator",
            Bearer::Reader => "reader",
            Bearer::Narrow => "narrow",
            Bearer::Ended => "ended",
            Bearer::Unknown => "unknown",
            Bearer::Absent => "absent",
        }
    }

    /// Returns the roles in force, as the file of tokens names them. `None`: the node must not accept the
    /// credential.
    pub fn roles(self) -> Option<&'static str> {
        match self {
            Bearer::Worker => Some("lock:/locks/*,lock:/elections/*,read,znode:/*"),
            Bearer::Operator => Some("operator"),
            Bearer::Reader => Some("read"),
            Bearer::Narrow => Some("lock:/locks/narrow/*"),
            Bearer::Ended | Bearer::Unknown | Bearer::Absent => None,
        }
    }
}

/// A fact that a client records. [`SessionId::NONE`] stands for requests by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The session has these identities from now on, as rules name them; a superuser's also has `super`.
    Proves { session: SessionId, who: Vec<String> },
    /// A request has an answer, from a state between `since` and `zxid`.
    Answered { session: SessionId, since: Zxid, zxid: Zxid, needs: Vec<Need>, result: Result<(), ErrorCode> },
    /// A node has shown the existence of a path, from the state of `zxid`.
    Shown { session: SessionId, zxid: Zxid, path: String },
    /// A node has sent a notice about a place.
    Noticed { session: SessionId, place: String },
    /// A node has answered an HTTP request with this status. `role` is the needed role: `see:` and a lock
    /// stand for a report, `lease` for a new lease.
    Credential { bearer: Bearer, role: String, status: u16 },
    /// A node has sent a list of locks.
    Listed { session: SessionId, locks: Box<Locks> },
}
