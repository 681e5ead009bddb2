//! Responses: status and JSON document of each result.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::lock::Party;
use serde::Serialize;
use serde_json::json;

use super::documents::{
    AskedDocument, AskedOf, IsHeld, LeaderDocument, LeaseKept, LeaseOpened, LedDocument, PartStanding,
    PartyDocument, PlaceDocument, Released, StandingDocument, StandingState, StandingsDocument,
};
use super::{Denied, Problem};
use crate::access::api::{Led, Opened, Part, Place, Questioned, Refusal, Secret, Standing, Standings};

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

pub(super) fn standing(standing: &Standing, questions: &[Questioned]) -> Response {
    let is_waiting = matches!(standing.place, Place::Waiting { .. });
    let status = if is_waiting { StatusCode::ACCEPTED } else { StatusCode::OK };
    let has_place = matches!(standing.place, Place::Held(_) | Place::Waiting { .. });
    let said = StandingDocument {
        asked: asked_of(questions),
        place: place(&standing.place),
        lease: has_place.then(|| standing.lease.to_string()),
        request_id: standing.request_id.clone(),
        secret: standing.secret.as_ref().map(Secret::reveal),
        valid_for_ms: has_place.then_some(standing.valid_for_ms),
    };
    document(status, &said)
}

/// Encodes the results of several locks. The overall state is the worst state of a single lock: busy, gone,
/// waiting, held.
pub(super) fn standings(standings: &Standings, parts: &[Part], questions: &[Questioned]) -> Response {
    let is_any = |wanted: fn(&Place) -> bool| standings.places.iter().any(wanted);
    let (state, status) = if is_any(|place| matches!(place, Place::Busy { .. })) {
        (StandingState::Busy, StatusCode::OK)
    } else if is_any(|place| matches!(place, Place::Gone)) {
        (StandingState::Gone, StatusCode::OK)
    } else if is_any(|place| matches!(place, Place::Waiting { .. })) {
        (StandingState::Waiting, StatusCode::ACCEPTED)
    } else {
        (StandingState::Held, StatusCode::OK)
    };
    let one =
        |(part, at): (&Part, &Place)| PartStanding { lock: part.lock.path().to_owned(), place: place(at) };
    let said = StandingsDocument {
        asked: asked_of(questions),
        lease: standings.lease.to_string(),
        locks: parts.iter().zip(&standings.places).map(one).collect(),
        request_id: standings.request_id.clone(),
        state,
        valid_for_ms: standings.valid_for_ms,
    };
    document(status, &said)
}

fn place(place: &Place) -> PlaceDocument {
    let none = |state| PlaceDocument { holder: None, place: None, position: None, state, token: None };
    match place {
        Place::Held(claim) => PlaceDocument {
            place: Some(claim.path.to_string()),
            token: Some(claim.token.0.to_string()),
            ..none(StandingState::Held)
        },
        Place::Waiting { claim, ahead, holder } => PlaceDocument {
            holder: Some(holder.as_ref().map(party)),
            place: Some(claim.path.to_string()),
            position: Some(u64::from(*ahead) + 1),
            ..none(StandingState::Waiting)
        },
        Place::Busy { holder } => {
            PlaceDocument { holder: Some(holder.as_ref().map(party)), ..none(StandingState::Busy) }
        }
        Place::Gone => none(StandingState::Gone),
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
