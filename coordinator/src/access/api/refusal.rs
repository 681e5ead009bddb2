//! Why a request is not granted.

use rowlock_proto::lock::Party;
use rowlock_proto::{ErrorCode, Right};

/// See the module. Nothing has happened, except where it says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request says what cannot be.
    #[error("{0}")]
    Bad(String),
    /// No such lease: it has expired or was given back, and everything of it is free.
    #[error("the lease is over: what it held is free, and nothing of it waits any more")]
    LeaseOver,
    /// The secret is another one.
    #[error("this is not the secret of the lease")]
    WrongSecret,
    /// An ACL does not allow it.
    #[error("the ACL does not allow this")]
    NotPermitted,
    /// The rules of the lock do not grant this right.
    #[error("{}", .0.missing_on("this lock"))]
    NoRight(Right),
    /// Waiting would close a circle of owners that wait for each other.
    #[error("waiting would close a circle: each waits for the next one, and the last one for you")]
    Deadlock(Vec<Party>),
    /// There is no znode of this path, or none to make it below.
    #[error("there is no such znode, or no parent to make it below")]
    NoZnode,
    /// The znode is unchanged.
    #[error("{0}")]
    InTheWay(&'static str),
    /// The znode has been changed meanwhile, or was another one.
    #[error("the znode has another version")]
    OtherVersion,
    /// The token of a write holds its lock no more.
    #[error(
        "the token does not hold the lock any more: a later holder may have written, so nothing was changed"
    )]
    Stale,
    /// The lock has another number of permits, or fewer than were asked for.
    #[error("the lock has {0} permits")]
    Limit(u32),
    /// The cluster has no memory for another request id of the lease.
    #[error("there is no memory for another request_id of this lease: take a new lease")]
    Spent,
    /// A bound of this node is reached.
    #[error("{0}; try again, or at another node")]
    Full(&'static str),
    /// Seconds until sessions are opened, at most.
    #[error(
        "the cluster was restored: it opens leases in {0} s, when clients of the former one have given up"
    )]
    Restored(u64),
    /// The node is not in contact with a quorum.
    #[error("this node is not in contact with a quorum; try again, or at another node")]
    NotServing,
    /// It may have happened.
    #[error(
        "it may have happened or not: repeat the request with the same request_id, here or at another node"
    )]
    Unknown,
}

impl Refusal {
    /// Converts an error of the state machine.
    pub(super) fn of(code: ErrorCode) -> Refusal {
        match code {
            ErrorCode::SessionExpired => Refusal::LeaseOver,
            ErrorCode::SessionMoved => Refusal::Unknown,
            ErrorCode::NoAuth => Refusal::NotPermitted,
            ErrorCode::NoRight(right) => Refusal::NoRight(right),
            ErrorCode::ThrottledOp => Refusal::Spent,
            ErrorCode::QuotaExceeded => {
                Refusal::Full("a quota, the queue of the lock, or the memory of the cluster is full")
            }
            ErrorCode::NoNode => Refusal::NoZnode,
            ErrorCode::NodeExists => Refusal::InTheWay("there is a znode of this path"),
            ErrorCode::NotEmpty => Refusal::InTheWay("the znode has children"),
            ErrorCode::NoChildrenForEphemerals => Refusal::InTheWay("an ephemeral znode has no children"),
            ErrorCode::BadVersion => Refusal::OtherVersion,
            ErrorCode::InvalidAcl => Refusal::Bad("the ACL is not valid".to_owned()),
            ErrorCode::BadArguments => Refusal::Bad(
                "the request is not valid, its request_id was used for another one, or the znode of a lock with \
                 permits holds other data"
                    .to_owned(),
            ),
            other => Refusal::Bad(format!("the cluster has refused it: {other:?}")),
        }
    }

    /// Whether to ask again after a moment is the remedy.
    pub fn is_passing(&self) -> bool {
        matches!(self, Refusal::Full(_) | Refusal::Restored(_) | Refusal::NotServing | Refusal::Unknown)
    }
}
