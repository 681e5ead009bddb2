//! The documents that clients get. What the OpenAPI document says of them is derived from these.
//!
//! Members stand in the order of the alphabet. Zxids, tokens and sessions are text, since some languages lose
//! digits of large JSON numbers.

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
    /// Without a sign of life for so long it is over, milliseconds.
    pub(super) ttl_ms: u32,
}

/// Another client asks for a lock that the lease holds.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct AskedDocument {
    pub(super) asked_ms_ago: i64,
    /// Who asks for the lock.
    pub(super) by: String,
    /// Path of the lock.
    pub(super) lock: String,
    /// Why the lock is wanted.
    pub(super) reason: String,
    /// In what time the lock has to be given back. Left out: it is only a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revoked_in_ms: Option<i64>,
    /// The fencing token by which the lease holds it.
    pub(super) token: String,
}

/// What a question has reached.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct AskedOf {
    /// How many holders; 0: the lock is free.
    pub(super) asked: u32,
    /// The first of them.
    pub(super) holders: Vec<PartyDocument>,
}

/// A lease that was kept alive.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LeaseKept {
    /// For each lock that it holds and that was asked for, the newest question. Left out: none was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<AskedDocument>,
    /// Counted from when the request was sent, milliseconds.
    pub(super) valid_for_ms: u32,
}

/// What a release has done.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct Released {
    /// False: it was not held, or not by this one. That is no error.
    pub(super) released: bool,
}

/// What the end of a session has done.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct Ended {
    /// False: there was no such session. That is no error.
    pub(super) ended: bool,
}

/// Whether a lock is held by a token.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct IsHeld {
    /// At a moment between request and answer.
    pub(super) held: bool,
}

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum StandingState {
    /// The attempt holds the lock.
    Held,
    /// It is in the queue: ask again with the same `request_id`.
    Waiting,
    /// It did not want to wait, and has left nothing behind.
    Busy,
    /// It was in the queue and is not any more.
    Gone,
}

/// A place in a queue.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct PartyDocument {
    /// What people see of it.
    pub(super) label: String,
    /// Path of its queue znode.
    pub(super) place: String,
    /// When it was granted or queued, milliseconds since 1970.
    pub(super) since_ms: i64,
    /// Fencing token of the place.
    pub(super) token: String,
}

/// One lock of an attempt.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct PlaceDocument {
    /// With `waiting` and `busy`; null: none, during a lock-delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<Option<PartyDocument>>,
    /// Path of the queue znode, with `held` and `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// In the queue, counted from 1, with `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    pub(super) state: StandingState,
    /// The fencing token, with `held`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// An attempt at one lock.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StandingDocument {
    /// With `held`: for each lock of the lease that was asked for, the newest question. Left out: none was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<AskedDocument>,
    #[serde(flatten)]
    pub(super) place: PlaceDocument,
    /// The lease that has the place, with `held` and `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<String>,
    /// To ask again by.
    pub(super) request_id: String,
    /// Of the lease, if it was made for this attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
    /// Counted from when the request was sent, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) valid_for_ms: Option<u32>,
}

/// One of several locks.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct PartStanding {
    /// Path of the lock.
    pub(super) lock: String,
    #[serde(flatten)]
    pub(super) place: PlaceDocument,
}

/// An attempt at several locks.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StandingsDocument {
    /// For each lock of the lease that was asked for, the newest question. Left out: none was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asked: Vec<AskedDocument>,
    /// The lease that has the places.
    pub(super) lease: String,
    /// In the order of the request.
    pub(super) locks: Vec<PartStanding>,
    /// To ask again by.
    pub(super) request_id: String,
    /// `held` if all of them are.
    pub(super) state: StandingState,
    /// Counted from when the request was sent, milliseconds.
    pub(super) valid_for_ms: u32,
}

/// The leader of an election.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LeaderDocument {
    /// Path of its queue znode.
    pub(super) place: String,
    /// When it began to lead, milliseconds since 1970.
    pub(super) since_ms: i64,
    /// Fencing token of the leader.
    pub(super) token: String,
    /// What it says of itself.
    pub(super) value: String,
}

/// The state of an election.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct LedDocument {
    /// The leader; null if there is none.
    pub(super) leader: Option<LeaderDocument>,
    /// Of the leader's last change of its own znode; for `after`.
    pub(super) zxid: String,
}

/// The Stat of a znode.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StatDocument {
    /// Changes of the ACL.
    pub(super) aversion: i32,
    /// Time of the creation, milliseconds since 1970.
    pub(super) ctime_ms: i64,
    /// Changes of the list of children.
    pub(super) cversion: i32,
    /// Zxid of the creation.
    pub(super) czxid: String,
    /// Size of the data in bytes.
    pub(super) data_length: i32,
    /// The lease or session of an ephemeral znode.
    pub(super) ephemeral_owner: Option<String>,
    /// Time of the last change of the data, milliseconds since 1970.
    pub(super) mtime_ms: i64,
    /// Zxid of the last change of the data.
    pub(super) mzxid: String,
    /// How many children it has.
    pub(super) num_children: i32,
    /// Zxid of the last change of the list of children.
    pub(super) pzxid: String,
    /// Changes of the data.
    pub(super) version: i32,
}

/// What was read of a znode.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct ZnodeDocument {
    /// With `view=acl`: entries like `ip:10.0.0.0/8:cdrwa`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) acl: Option<Vec<String>>,
    /// With `view=children`: names in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) children: Option<Vec<String>>,
    /// With `view=children`: others follow the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) more: Option<bool>,
    /// Full path of the znode.
    pub(super) path: String,
    pub(super) stat: StatDocument,
}

/// The lock of a state.
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
pub(super) struct StateHeld {
    /// Path of its queue znode.
    pub(super) place: String,
    pub(super) state: StandingState,
    /// Fencing token of the place.
    pub(super) token: String,
}

/// Why a request was not done (RFC 9457).
#[derive(Serialize)]
#[cfg_attr(test, derive(ToSchema))]
#[allow(dead_code)] // `Problem` writes it
pub(super) struct ProblemDocument {
    /// With 409: those who would wait for each other.
    circle: Option<Vec<PartyDocument>>,
    /// Explanation of the problem in a sentence.
    detail: String,
    /// With 422: how many permits the lock has.
    limit: Option<u32>,
    /// With 403: the right on the lock that is missing (take, ask, force, or see).
    missing: Option<String>,
    /// With 412: the token of the fence does not hold the lock.
    stale: Option<bool>,
    /// That of the answer.
    status: u16,
    /// The status in words.
    title: String,
    /// Type of the problem: always `about:blank`.
    r#type: String,
}
