//! Responses: status and JSON document of each result.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::lock::{Party, QueuePosition};
use serde::Serialize;
use serde_json::json;

use super::documents::{
    AcquiredDocument, AskedDocument, AskedOf, IsHeld, LeaderDocument, LeaseKept, LeaseOpened, LedDocument,
    LockPosition, PartyDocument, PositionDocument, PositionState, Released,
};
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
            Refusal::OtherVersion | Refusal::Stale => StatusCode::PRECONDITION_FAILED,
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
            Refusal::Stale => problem.with("stale", true),
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
