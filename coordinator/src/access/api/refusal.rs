//! Reasons for refusing a request.

use rowlock_proto::lock::Party;
use rowlock_proto::{ErrorCode, Right};

/// Refusal of a request. Except for [`Refusal::Unknown`], the request had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Bad(String),
    /// Unknown lease: expired or closed. All its locks are free.
    #[error("the lease is over: its locks are released and its queue positions deleted")]
    LeaseOver,
    #[error("wrong secret for this lease")]
    WrongSecret,
    /// Denied by an ACL.
    #[error("the ACL does not permit this")]
    NotPermitted,
    /// Denied by the rules for the lock.
    #[error("{}", .0.missing_on("this lock"))]
    NoRight(Right),
    /// Waiting would complete a circle of owners waiting for each other.
    #[error("deadlock detected: waiting would close a circle of owners")]
    Deadlock(Vec<Party>),
    /// No znode at this path, or no parent for a create.
    #[error("there is no such znode, or no parent for a create")]
    NoZnode,
    /// Conflict with an existing znode; nothing was changed.
    #[error("{0}")]
    InTheWay(&'static str),
    /// Version of the znode differs from the expected version.
    #[error("the znode has another version")]
    OtherVersion,
    /// Fencing token of the write no longer holds the lock.
    #[error("the token no longer holds the lock, and a later holder may have written: nothing was changed")]
    Stale,
    /// Number of permits of the lock differs, or is less than the requested permits.
    #[error("the lock has {0} permits")]
    Limit(u32),
    /// Deduplication memory of the lease is full.
    #[error("no memory for another request_id of this lease: open a new lease")]
    Spent,
    #[error("a quota, the queue of the lock, or the cluster's memory is full: make room, then retry")]
    NoRoom,
    /// Bound of this node.
    #[error("{0}; retry later or at another node")]
    Full(&'static str),
    /// Longest time in seconds until new sessions are accepted.
    #[error("the cluster was restored: retry in {0} s, when clients of the former cluster have given up")]
    Restored(u64),
    #[error("this node is not in contact with a quorum; retry later or at another node")]
    NotServing,
    #[error("unknown outcome: repeat the request with the same request_id, here or at another node")]
    Unknown,
}

impl Refusal {
    pub(super) fn of(code: ErrorCode) -> Refusal {
        match code {
            ErrorCode::SessionExpired => Refusal::LeaseOver,
            ErrorCode::SessionMoved => Refusal::Unknown,
            ErrorCode::NoAuth => Refusal::NotPermitted,
            ErrorCode::NoRight(right) => Refusal::NoRight(right),
            ErrorCode::ThrottledOp => Refusal::Spent,
            ErrorCode::QuotaExceeded => Refusal::NoRoom,
            ErrorCode::NoNode => Refusal::NoZnode,
            ErrorCode::NodeExists => Refusal::InTheWay("there is a znode at this path"),
            ErrorCode::NotEmpty => Refusal::InTheWay("the znode has children"),
            ErrorCode::NoChildrenForEphemerals => Refusal::InTheWay("an ephemeral znode has no children"),
            ErrorCode::BadVersion => Refusal::OtherVersion,
            ErrorCode::InvalidAcl => Refusal::Bad("the ACL is not valid".to_owned()),
            ErrorCode::BadArguments => Refusal::Bad(
                "the request is not valid, its request_id was used before, or the znode of a lock with \
                 permits holds other data"
                    .to_owned(),
            ),
            other => Refusal::Bad(format!("the cluster refused the request: {other:?}")),
        }
    }

    /// Returns whether retrying later may succeed.
    pub fn is_passing(&self) -> bool {
        use Refusal::{Full, NoRoom, NotServing, Restored, Unknown};
        matches!(self, NoRoom | Full(_) | Restored(_) | NotServing | Unknown)
    }
}
