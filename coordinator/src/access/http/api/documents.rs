//! Documents in responses. The OpenAPI document is derived from these types.
//!
//! Members are in alphabetical order. Zxids, tokens and sessions are text, since some languages lose digits
//! of large JSON numbers.

use serde::Serialize;
#[cfg(test)]
use utoipa::ToSchema;

/// A lease that was opened.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LeaseOpened {
    /// Id of the lease, hexadecimal.
    #[cfg_attr(test, schema(example = "0x1000000000000a1"))]
    pub(super) lease: String,
    /// Proof of the right to the lease.
    pub(super) secret: String,
    /// Longest time between two keepalives, in milliseconds; after this time the lease expires.
    pub(super) ttl_ms: u32,
}

/// Question of another client about a lock of the lease.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct AskedDocument {
    pub(super) asked_ms_ago: i64,
    /// Client that asks, for people.
    pub(super) by: String,
    /// Path of the lock.
    pub(super) lock: String,
    /// Reason for the question.
    pub(super) reason: String,
    /// Remaining milliseconds until the lock is revoked. Absent: the question is only a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revoked_in_ms: Option<i64>,
    /// Fencing token of the lease's hold.
    pub(super) token: String,
}

/// Receivers of a question.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct AskedOf {
    /// Number of holders; 0: the lock is free.
    pub(super) asked: u32,
    /// First holders of the lock.
    pub(super) holders: Vec<PartyDocument>,
}

/// A lease that was renewed.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LeaseKept {
    /// Newest question for each held lock. Absent: no questions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<AskedDocument>,
    /// Remaining validity in milliseconds, counted from the time of the client's request.
    pub(super) valid_for_ms: u32,
}

/// Result of a release.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct Released {
    /// False: the lock was not held, or not by this attempt. False is no error.
    pub(super) released: bool,
}

/// Result of ending a session.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct Ended {
    /// False: there was no such session. False is no error.
    pub(super) ended: bool,
}

/// Result of verifying a token.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct IsHeld {
    /// The token held the lock at a moment between request and response.
    pub(super) held: bool,
}

/// State of an attempt, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum PositionState {
    /// The attempt holds the lock.
    Held,
    /// The attempt is queued: repeat the request with the same `request_id`.
    Waiting,
    /// The queue position was released, forced or revoked.
    Gone,
    /// The request did not want to wait; no queue position remains.
    Busy,
}

/// A holder or waiter.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct PartyDocument {
    /// Label of the client, for people.
    pub(super) label: String,
    /// Path of the queue znode.
    pub(super) place: String,
    /// Time of the grant or of queueing, in milliseconds since 1970.
    pub(super) since_ms: i64,
    /// Fencing token of the queue position.
    pub(super) token: String,
}

/// Queue position of an attempt.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct PositionDocument {
    /// First holder, for `waiting` and `busy`; null during a lock-delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<Option<PartyDocument>>,
    /// Path of the queue znode, for `held` and `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// Position in the queue, counted from 1, for `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    pub(super) state: PositionState,
    /// Fencing token, for `held`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// Result for one of several locks.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LockPosition {
    /// Path of the lock.
    pub(super) lock: String,
    #[serde(flatten)]
    pub(super) position: PositionDocument,
}

/// Result of an acquire. For several locks the state is `held` if all locks are held, and the positions are
/// in `locks`.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct AcquiredDocument {
    /// Newest question for each lock of the lease, for `held`. Absent: no questions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<AskedDocument>,
    /// Lease with the queue positions, for `held` and `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<String>,
    /// Results in the order of the requested locks. Absent: the request was for a single lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locks: Option<Vec<LockPosition>>,
    #[serde(flatten)]
    pub(super) position: PositionDocument,
    /// Id for a retry.
    pub(super) request_id: String,
    /// Secret of the lease, if the attempt opened the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
    /// Remaining validity of the lease in milliseconds, counted from the time of the client's request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) valid_for_ms: Option<u32>,
}

/// The leader of an election.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LeaderDocument {
    /// Path of the leader's queue znode.
    pub(super) place: String,
    /// Time of the grant, in milliseconds since 1970.
    pub(super) since_ms: i64,
    /// Fencing token of the leader.
    pub(super) token: String,
    /// Value published by the leader.
    pub(super) value: String,
}

/// The state of an election.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LedDocument {
    /// The leader; null: there is none.
    pub(super) leader: Option<LeaderDocument>,
    /// Zxid of the last change of the leader's znode; for `after`.
    pub(super) zxid: String,
}

/// The Stat of a znode.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StatDocument {
    /// Number of changes of the ACL.
    pub(super) aversion: i32,
    /// Time of creation, in milliseconds since 1970.
    pub(super) ctime_ms: i64,
    /// Number of changes of the list of children.
    pub(super) cversion: i32,
    /// Zxid of the creation.
    pub(super) czxid: String,
    /// Size of the data in bytes.
    pub(super) data_length: i32,
    /// Lease or session of an ephemeral znode.
    pub(super) ephemeral_owner: Option<String>,
    /// Time of the last change of the data, in milliseconds since 1970.
    pub(super) mtime_ms: i64,
    /// Zxid of the last change of the data.
    pub(super) mzxid: String,
    /// Number of the znode's children.
    pub(super) num_children: i32,
    /// Zxid of the last change of the list of children.
    pub(super) pzxid: String,
    /// Number of changes of the data.
    pub(super) version: i32,
}

/// Result of reading a znode.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct ZnodeDocument {
    /// ACL entries like `ip:10.0.0.0/8:cdrwa`, for `view=acl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) acl: Option<Vec<String>>,
    /// Sorted names of the children, for `view=children`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) children: Option<Vec<String>>,
    /// True if more names follow, for `view=children`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) more: Option<bool>,
    /// Full path of the znode.
    pub(super) path: String,
    pub(super) stat: StatDocument,
}

/// A held lock of a Terraform state.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StateHeld {
    /// Path of the queue znode.
    pub(super) place: String,
    pub(super) state: PositionState,
    /// Fencing token of the lock.
    pub(super) token: String,
}

/// Error of a request (RFC 9457).
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
#[allow(dead_code)] // `Problem` writes it
pub(super) struct ProblemDocument {
    /// Circle of waiting clients, for 409.
    circle: Option<Vec<PartyDocument>>,
    /// Explanation of this error in a sentence.
    detail: String,
    /// Number of permits of the lock, for 422.
    limit: Option<u32>,
    /// Missing right on the lock (take, ask, force, or see), for 403.
    missing: Option<String>,
    /// True if the fence's token does not hold the lock, for 412.
    stale: Option<bool>,
    /// Status code of the response.
    status: u16,
    /// Status of the answer in words.
    title: String,
    /// Type of the problem: always `about:blank`.
    r#type: String,
}
