//! `DELETE /v1/locks/{name}/holders/{token}`: for operators, and recorded in the audit log.

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, body::Body};
use rowlock_proto::FencingToken;

use super::super::access::Done;
use super::path_text::PathText;
use super::{ApiContext, Asked, Asking, Denied, Problem, answer, path_of};
use crate::api::{LockName, Refusal};
use crate::tokens::Role;

pub(super) async fn force(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    PathText(rest): PathText,
    request: Request<Body>,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    do_force(&asked, &rest).await.unwrap_or_else(|denied| *denied)
}

async fn do_force(asked: &Asked<'_>, rest: &str) -> Result<Response, Denied> {
    let unknown = || {
        let detail = format!("there is no {}", asked.path);
        Box::new(Problem::new(StatusCode::NOT_FOUND, detail).into_response())
    };
    let (lock, token) = rest.rsplit_once('/').ok_or_else(unknown)?;
    let name = lock.strip_suffix("/holders").ok_or_else(unknown)?;
    asked.check(asked.asker.may(&Role::Operator))?;
    let name: LockName = name.parse().map_err(answer::refusal)?;
    let wrong = || answer::refusal(Refusal::Bad("the token is no number".to_owned()));
    let token = token.parse().map(FencingToken).map_err(|_| wrong())?;
    let forced = asked.context.api.force(&asked.caller(), &name, token).await;
    let result = match &forced {
        Ok(true) => "ok",
        Ok(false) => "NotHeld",
        Err(Refusal::NotPermitted) => "NoAuth",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    };
    let detail = format!("token={token}");
    let done = Done { op: "forceRelease", path: name.path(), detail: &detail, result };
    asked.context.http.access.record_admin(&done, asked.asker, asked.visitor);
    Ok(answer::released(forced.map_err(answer::refusal)?))
}
