//! Responses: status and JSON document of each result. The OpenAPI document is derived from the documents'
//! types.
//!
//! Members are in alphabetical order. Zxids, tokens and sessions are text, since some languages lose digits
//! of large JSON numbers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::lock::{Party, QueuePosition};
use serde::Serialize;
use serde_json::json;
#[cfg(test)]
use utoipa::ToSchema;

use super::{Denied, Problem};
use crate::access::api::{Acquired, Led, Opened, Part, Questioned, Refusal, Secret};

/// Encodes a document; members are in alphabetical order.
pub(super) fn document(status: StatusCode, document: &impl Serialize) -> Response {
    let value = serde_json::to_value(document).expect("Invariant: a document is structs, text and numbers");
    (status, Json(value)).into_response()
}

pub(super) fn opened(opened: &Opened) -> Response {
    let Opened { secret, ttl_ms } = opened;
    let lease = secret.session.to_string();
    document(StatusCode::CREATED, &LeaseOpened { lease, secret: secret.reveal(), ttl_ms: *ttl_ms })
}

pub(super) fn kept(valid_for_ms: u32, questions: &[Questioned]) -> Response {
    document(StatusCode::OK, &LeaseKept { asked: asked_of(questions), valid_for_ms })
}

pub(super) fn asked(count: u32, holders: &[Party]) -> Response {
    document(StatusCode::OK, &AskedOf { asked: count, holders: holders.iter().map(party).collect() })
}

fn asked_of(questions: &[Questioned]) -> Vec<AskedDocument> {
    let one = |Questioned { lock, token, asked }: &Questioned| AskedDocument {
        asked_ms_ago: asked.asked_ms_ago,
        by: asked.by.clone(),
        lock: lock.clone(),
        reason: asked.reason.clone(),
        revoked_in_ms: asked.revoked_in_ms,
        token: token.0.to_string(),
    };
    questions.iter().map(one).collect()
}

pub(super) fn released(released: bool) -> Response {
    document(StatusCode::OK, &Released { released })
}

pub(super) fn held(held: bool) -> Response {
    document(StatusCode::OK, &IsHeld { held })
}

pub(super) fn led(led: &Led) -> Response {
    let leader = led.leader.as_ref().map(|(party, value)| LeaderDocument {
        place: party.path.to_string(),
        since_ms: party.since_ms,
        token: party.token.0.to_string(),
        value: value.clone(),
    });
    document(StatusCode::OK, &LedDocument { leader, zxid: led.zxid.0.to_string() })
}

/// Encodes the result of an acquire of one lock.
pub(super) fn acquired(acquired: &Acquired, questions: &[Questioned]) -> Response {
    let position = acquired.positions.first().map_or(none(PositionState::Gone), position);
    encode(acquired, (position, None), questions)
}

/// Encodes the result of an acquire of several locks. The overall state is the worst state of a single lock.
pub(super) fn acquired_all(acquired: &Acquired, parts: &[Part], questions: &[Questioned]) -> Response {
    let one = |(part, at): (&Part, &QueuePosition)| LockPosition {
        lock: part.lock.path().to_owned(),
        position: position(at),
    };
    let locks: Vec<LockPosition> = parts.iter().zip(&acquired.positions).map(one).collect();
    let worst = locks.iter().map(|lock| lock.position.state).max().unwrap_or(PositionState::Gone);
    encode(acquired, (none(worst), Some(locks)), questions)
}

fn encode(
    acquired: &Acquired,
    (position, locks): (PositionDocument, Option<Vec<LockPosition>>),
    questions: &[Questioned],
) -> Response {
    let status = match position.state {
        PositionState::Waiting => StatusCode::ACCEPTED,
        PositionState::Held | PositionState::Busy | PositionState::Gone => StatusCode::OK,
    };
    let has_claim = acquired.positions.iter().any(|position| position.claim().is_some());
    let is_shown = has_claim || locks.is_some();
    let acquired = AcquiredDocument {
        asked: asked_of(questions),
        contended: acquired.contended && position.state == PositionState::Held,
        lease: is_shown.then(|| acquired.lease.to_string()),
        locks,
        position,
        request_id: acquired.request_id.clone(),
        secret: acquired.secret.as_ref().map(Secret::reveal),
        valid_for_ms: is_shown.then_some(acquired.valid_for_ms),
    };
    document(status, &acquired)
}

fn none(state: PositionState) -> PositionDocument {
    PositionDocument { holder: None, place: None, position: None, state, token: None }
}

fn position(position: &QueuePosition) -> PositionDocument {
    match position {
        QueuePosition::Held(claim) => PositionDocument {
            place: Some(claim.path.to_string()),
            token: Some(claim.token.0.to_string()),
            ..none(PositionState::Held)
        },
        QueuePosition::Waiting { claim, ahead, holder } => PositionDocument {
            holder: Some(holder.as_ref().map(party)),
            place: Some(claim.path.to_string()),
            position: Some(u64::from(*ahead) + 1),
            ..none(PositionState::Waiting)
        },
        QueuePosition::Busy { holder, .. } => {
            PositionDocument { holder: Some(holder.as_ref().map(party)), ..none(PositionState::Busy) }
        }
        QueuePosition::Absent => none(PositionState::Gone),
        QueuePosition::Deadlock(_) | QueuePosition::LimitIs(_) => {
            unreachable!("an acquire refuses with {position:?}")
        }
    }
}

fn party(party: &Party) -> PartyDocument {
    PartyDocument {
        label: String::from_utf8_lossy(&party.label).into_owned(),
        place: party.path.to_string(),
        since_ms: party.since_ms,
        token: party.token.0.to_string(),
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Denied {
        let status = match &refusal {
            Refusal::Bad(_) => StatusCode::BAD_REQUEST,
            Refusal::LeaseOver | Refusal::NoZnode => StatusCode::NOT_FOUND,
            Refusal::WrongSecret | Refusal::NotPermitted | Refusal::NoRight(_) => StatusCode::FORBIDDEN,
            Refusal::Deadlock(_) | Refusal::InTheWay(_) => StatusCode::CONFLICT,
            Refusal::OtherVersion | Refusal::Stale | Refusal::StaleCopy => StatusCode::PRECONDITION_FAILED,
            Refusal::Limit(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refusal::Spent => StatusCode::TOO_MANY_REQUESTS,
            Refusal::NoRoom
            | Refusal::Full(_)
            | Refusal::Restored(_)
            | Refusal::NotServing
            | Refusal::Unknown => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = Problem::new(status, refusal.to_string());
        let problem = match &refusal {
            Refusal::Deadlock(circle) => {
                let circle: Vec<PartyDocument> = circle.iter().map(party).collect();
                problem.with("circle", json!(circle))
            }
            Refusal::Limit(limit) => problem.with("limit", *limit),
            Refusal::Stale | Refusal::StaleCopy => problem.with("stale", true),
            Refusal::NotPermitted => problem.denied(None),
            Refusal::NoRight(right) => problem.denied(Some(*right)),
            _ => problem,
        };
        let mut response = problem.into_response();
        if refusal.is_passing() {
            response.headers_mut().insert(
                header::RETRY_AFTER,
                HeaderValue::from(if let Refusal::Restored(seconds) = refusal { seconds } else { 1 }),
            );
        }
        Denied(Box::new(response))
    }
}

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
    asked_ms_ago: i64,
    /// Client that asks, for people.
    pub(super) by: String,
    /// Path of the lock.
    pub(super) lock: String,
    /// Reason for the question.
    pub(super) reason: String,
    /// Remaining milliseconds until the lock is revoked. Absent: the question is only a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_in_ms: Option<i64>,
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
    /// Whether this request waited, for `held`. Absent: the grant came at once, or to an earlier request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) contended: bool,
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
