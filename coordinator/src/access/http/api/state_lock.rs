//! `/v1/terraform/{name}`: the lock that Terraform's and OpenTofu's backend "http" takes before it works on a
//! state. It asks by LOCK and UNLOCK, or by whatever methods its configuration names.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::Right;
use rowlock_types::limits::API_BODY_MAX_BYTES;
use serde_json::Value;

use super::super::access::AdminRequest;
use super::documents::{StandingState, StateHeld};
use super::{Answer, Asked, Denied, answer, problem, read_body};
use crate::api::{self, LockInfo, LockName, Refusal, StateLock, Unlocked};
use crate::report::question::decoded;

/// Before the name of the state.
pub(in crate::access::http) const PREFIX: &str = "/v1/terraform/";

pub(super) async fn state_lock(asked: Asked, request: Request) -> Answer {
    match request.method().as_str() {
        "LOCK" | "POST" | "PUT" => lock(&asked, request).await,
        "UNLOCK" | "DELETE" => unlock(&asked, request).await,
        other => Err(not_taken(&asked, other)),
    }
}

fn not_taken(asked: &Asked, method: &str) -> Denied {
    let detail = format!("{} takes LOCK and UNLOCK, or POST, PUT and DELETE, not {method}", asked.path);
    let mut denied = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
    denied.0.headers_mut().insert(header::ALLOW, HeaderValue::from_static("LOCK, UNLOCK, POST, PUT, DELETE"));
    denied
}

async fn lock(asked: &Asked, request: Request) -> Answer {
    let name = own(asked)?;
    let document = read_body(request.into_body(), API_BODY_MAX_BYTES).await?;
    let info = LockInfo::read(document)?;
    match asked.api().lock_state(&asked.caller(), &name, &info).await? {
        StateLock::Held(claim) => {
            let (place, token) = (claim.path.to_string(), claim.token.0.to_string());
            Ok(answer::document(StatusCode::OK, &StateHeld { place, state: StandingState::Held, token }))
        }
        StateLock::Taken(by) => Ok(taken(StatusCode::LOCKED, by)),
    }
}

async fn unlock(asked: &Asked, request: Request) -> Answer {
    let name = own(asked)?;
    let (api, caller, method) = (asked.api(), asked.caller(), request.method().clone());
    let document = read_body(request.into_body(), API_BODY_MAX_BYTES).await?;
    if document.is_empty() && method != Method::DELETE {
        return force(asked, &name).await;
    }
    let info = LockInfo::read(document)?;
    match api.unlock_state(&caller, &name, &info).await? {
        Unlocked::Done(released) => Ok(answer::released(released)),
        Unlocked::Taken(by) => Ok(taken(StatusCode::CONFLICT, by)),
    }
}

/// `force-unlock` of OpenTofu, and of older releases of Terraform, does not say by which ID.
async fn force(asked: &Asked, name: &LockName) -> Answer {
    asked.check_force(name)?;
    let forced = asked.api().force_state(&asked.caller(), name).await;
    let (detail, result) = match &forced {
        Ok(Some(token)) => (format!("token={}", token.0), "ok"),
        Ok(None) => (String::new(), "NotHeld"),
        Err(Refusal::NotPermitted | Refusal::NoRight(_)) => (String::new(), "NoAuth"),
        Err(_) => (String::new(), "Failed"),
    };
    let done = AdminRequest { op: "forceRelease", path: name.path(), detail: &detail, result };
    asked.context.http.access.record_admin(&done, &asked.asker, &asked.visitor);
    Ok(answer::released(forced?.is_some()))
}

/// The lock of the state in the path of the request, if the asker may use it.
fn own(asked: &Asked) -> Result<LockName, Denied> {
    let name = asked.path.strip_prefix(PREFIX).filter(|name| !name.contains('/')).and_then(decoded);
    let wrong = || Refusal::Bad("the name of a state is one part of the path".to_owned());
    let name = api::state_lock(&name.ok_or_else(wrong)?)?;
    asked.check_lock(&name, Right::Take)?;
    Ok(name)
}

/// The clients read the holder's document, and nothing else.
fn taken(status: StatusCode, by: Value) -> Response {
    (status, Json(by)).into_response()
}
