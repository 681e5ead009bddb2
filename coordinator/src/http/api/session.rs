//! `DELETE /v1/sessions/{session}`: for operators, and recorded in the audit log.

use axum::Extension;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::super::access::Done;
use super::documents::Ended;
use super::path_text::PathText;
use super::{ApiContext, Asked, Asking, Denied, answer, path_of};
use crate::api::Refusal;
use crate::report::question;

pub(super) async fn end(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    PathText(id): PathText,
    request: Request,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    do_end(&asked, &id).await.unwrap_or_else(|denied| *denied)
}

async fn do_end(asked: &Asked<'_>, id: &str) -> Result<Response, Denied> {
    // An open listener proves nothing, and a session is not a matter of ACLs, as a single lock is.
    asked.check(asked.asker.is_super())?;
    let wrong = || answer::refusal(Refusal::Bad("that is no session, like 0x100000000000001".to_owned()));
    let session = question::session(id).ok_or_else(wrong)?;
    let ended = asked.context.api.end_session(&asked.caller(), session).await;
    let result = match &ended {
        Ok(true) => "ok",
        Ok(false) => "NoSession",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    };
    let detail = format!("session={session}");
    let done = Done { op: "endSession", path: "", detail: &detail, result };
    asked.context.http.access.record_admin(&done, asked.asker, asked.visitor);
    let ended = ended.map_err(answer::refusal)?;
    Ok(answer::document(StatusCode::OK, &Ended { ended }))
}
