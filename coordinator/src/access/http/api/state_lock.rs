//! `/v1/terraform/{name}`: lock for the backend "http" of Terraform and OpenTofu. The backend sends LOCK and
//! UNLOCK, or the methods of its configuration.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::Right;
use serde_json::Value;

use super::super::access::AdminRequest;
use super::answer::{self, PositionState, StateHeld};
use super::locks::audited;
use super::{Answer, ApiCall, Denied, problem, read_body};
use crate::access::api::{self, LockInfo, LockName, Refusal, StateLock, Unlocked};
use crate::access::report::question::decoded;
use crate::limits::API_BODY_MAX_BYTES;

/// Prefix of a state's path.
pub(in crate::access::http) const PREFIX: &str = "/v1/terraform/";

pub(super) async fn state_lock(call: ApiCall, request: Request) -> Answer {
    match request.method().as_str() {
        "LOCK" | "POST" | "PUT" => lock(&call, request).await,
        "UNLOCK" | "DELETE" => unlock(&call, request).await,
        other => Err(not_taken(&call, other)),
    }
}

fn not_taken(call: &ApiCall, method: &str) -> Denied {
    let detail = format!("{} takes LOCK and UNLOCK, or POST, PUT and DELETE, not {method}", call.path);
    let mut denied = problem(StatusCode::METHOD_NOT_ALLOWED, detail);
    denied.0.headers_mut().insert(header::ALLOW, HeaderValue::from_static("LOCK, UNLOCK, POST, PUT, DELETE"));
    denied
}

async fn lock(call: &ApiCall, request: Request) -> Answer {
    let name = own(call)?;
    let document = read_body(request.into_body(), API_BODY_MAX_BYTES).await?;
    let info = LockInfo::read(document)?;
    match call.api().lock_state(&call.caller(), &name, &info).await? {
        StateLock::Held(claim) => {
            let (place, token) = (claim.path.to_string(), claim.token.0.to_string());
            Ok(answer::document(StatusCode::OK, &StateHeld { place, state: PositionState::Held, token }))
        }
        StateLock::Taken(by) => Ok(taken(StatusCode::LOCKED, by)),
    }
}

async fn unlock(call: &ApiCall, request: Request) -> Answer {
    let name = own(call)?;
    let (api, caller, method) = (call.api(), call.caller(), request.method().clone());
    let document = read_body(request.into_body(), API_BODY_MAX_BYTES).await?;
    if document.is_empty() && method != Method::DELETE {
        return force(call, &name).await;
    }
    let info = LockInfo::read(document)?;
    match api.unlock_state(&caller, &name, &info).await? {
        Unlocked::Done(released) => Ok(answer::released(released)),
        Unlocked::Taken(by) => Ok(taken(StatusCode::CONFLICT, by)),
    }
}

/// Forces a release: `force-unlock` of OpenTofu and of older Terraform releases sends no ID.
async fn force(call: &ApiCall, name: &LockName) -> Answer {
    call.check_force(name)?;
    let forced = call.api().force_state(&call.caller(), name).await;
    let token = forced.as_ref().ok().copied().flatten();
    let detail = token.map_or(String::new(), |token| format!("token={token}"));
    let result = audited(forced.as_ref().map(Option::is_some));
    let done = AdminRequest { op: "forceRelease", path: name.path(), detail: &detail, result };
    call.context.http.access.record_admin(&done, &call.principal, &call.visitor);
    Ok(answer::released(forced?.is_some()))
}

/// Returns the lock of the state in the request's path, if the caller may take the lock.
fn own(call: &ApiCall) -> Result<LockName, Denied> {
    let name = call.path.strip_prefix(PREFIX).filter(|name| !name.contains('/')).and_then(decoded);
    let wrong = || Refusal::Bad("the name of a state must be one part of the path".to_owned());
    let name = api::state_lock(&name.ok_or_else(wrong)?)?;
    call.check_lock(&name, Right::Take)?;
    Ok(name)
}

/// Encodes the holder's lock info, the only document that Terraform reads.
fn taken(status: StatusCode, by: Value) -> Response {
    (status, Json(by)).into_response()
}
