//! What clients are answered: the status of every outcome, and its document.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::lock::Party;
use serde_json::{Map, Value, json};

use super::Problem;
use crate::api::{Led, Opened, Part, Place, Refusal, Standing, Standings};

pub(super) fn opened(opened: &Opened) -> Response {
    let lease = opened.secret.session.to_string();
    let document = json!({ "lease": lease, "secret": opened.secret.reveal(), "ttl_ms": opened.ttl_ms });
    (StatusCode::CREATED, Json(document)).into_response()
}

pub(super) fn kept(valid_for_ms: u32) -> Response {
    Json(json!({ "valid_for_ms": valid_for_ms })).into_response()
}

pub(super) fn flag(name: &str, value: bool) -> Response {
    Json(json!({ name: value })).into_response()
}

pub(super) fn led(led: &Led) -> Response {
    let leader = led.leader.as_ref().map(|(party, value)| {
        let mut leader = party_members(party);
        leader.insert("value".to_owned(), value.as_str().into());
        Value::Object(leader)
    });
    Json(json!({ "zxid": led.zxid.0.to_string(), "leader": leader })).into_response()
}

pub(super) fn standing(standing: &Standing) -> Response {
    let mut document = place(&standing.place);
    let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
    let is_waiting = matches!(standing.place, Place::Waiting { .. });
    let status = if is_waiting { StatusCode::ACCEPTED } else { StatusCode::OK };
    let has_place = matches!(standing.place, Place::Held(_) | Place::Waiting { .. });
    put("request_id", standing.request_id.as_str().into());
    if has_place {
        put("lease", standing.lease.to_string().into());
        put("valid_for_ms", standing.valid_for_ms.into());
    }
    if let Some(secret) = &standing.secret {
        put("secret", secret.reveal().into());
    }
    (status, Json(Value::Object(document))).into_response()
}

/// The state of all is that of the one that keeps the client from having them.
pub(super) fn standings(standings: &Standings, parts: &[Part]) -> Response {
    let is_any = |wanted: fn(&Place) -> bool| standings.places.iter().any(wanted);
    let (state, status) = if is_any(|place| matches!(place, Place::Busy { .. })) {
        ("busy", StatusCode::OK)
    } else if is_any(|place| matches!(place, Place::Gone)) {
        ("gone", StatusCode::OK)
    } else if is_any(|place| matches!(place, Place::Waiting { .. })) {
        ("waiting", StatusCode::ACCEPTED)
    } else {
        ("held", StatusCode::OK)
    };
    let one = |(part, at): (&Part, &Place)| {
        let mut document = place(at);
        document.insert("lock".to_owned(), part.lock.path().into());
        Value::Object(document)
    };
    let document = json!({
        "state": state,
        "locks": parts.iter().zip(&standings.places).map(one).collect::<Value>(),
        "request_id": standings.request_id,
        "lease": standings.lease.to_string(),
        "valid_for_ms": standings.valid_for_ms,
    });
    (status, Json(document)).into_response()
}

fn place(place: &Place) -> Map<String, Value> {
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
    match place {
        Place::Held(claim) => {
            put("state", "held".into());
            put("token", claim.token.0.to_string().into());
            put("place", claim.path.as_str().into());
        }
        Place::Waiting { claim, ahead, holder } => {
            put("state", "waiting".into());
            put("position", (u64::from(*ahead) + 1).into());
            put("place", claim.path.as_str().into());
            put("holder", holder.as_ref().map_or(Value::Null, party));
        }
        Place::Busy { holder } => {
            put("state", "busy".into());
            put("holder", holder.as_ref().map_or(Value::Null, party));
        }
        Place::Gone => {
            put("state", "gone".into());
        }
    }
    document
}

fn party(party: &Party) -> Value {
    let mut document = party_members(party);
    document.insert("label".to_owned(), String::from_utf8_lossy(&party.label).into());
    Value::Object(document)
}

fn party_members(party: &Party) -> Map<String, Value> {
    let mut document = Map::new();
    document.insert("token".to_owned(), party.token.0.to_string().into());
    document.insert("place".to_owned(), party.path.as_str().into());
    document.insert("since_ms".to_owned(), party.since_ms.into());
    document
}

pub(super) fn refusal(refusal: Refusal) -> Box<Response> {
    let status = match &refusal {
        Refusal::Bad(_) => StatusCode::BAD_REQUEST,
        Refusal::LeaseOver | Refusal::NoZnode => StatusCode::NOT_FOUND,
        Refusal::WrongSecret | Refusal::NotPermitted => StatusCode::FORBIDDEN,
        Refusal::Deadlock(_) | Refusal::InTheWay(_) => StatusCode::CONFLICT,
        Refusal::OtherVersion => StatusCode::PRECONDITION_FAILED,
        Refusal::Limit(_) => StatusCode::UNPROCESSABLE_ENTITY,
        Refusal::Spent => StatusCode::TOO_MANY_REQUESTS,
        Refusal::Full(_) | Refusal::NotServing | Refusal::Unknown => StatusCode::SERVICE_UNAVAILABLE,
    };
    let problem = Problem::new(status, refusal.to_string());
    let problem = match &refusal {
        Refusal::Deadlock(circle) => problem.with("circle", circle.iter().map(party).collect::<Value>()),
        Refusal::Limit(limit) => problem.with("limit", *limit),
        _ => problem,
    };
    let mut response = problem.into_response();
    if refusal.is_passing() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Box::new(response)
}
