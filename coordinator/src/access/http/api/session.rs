//! `DELETE /v1/sessions/{session}`: for operators; the audit log records each request.

use axum::http::StatusCode;

use super::super::access::AdminRequest;
use super::documents::Ended;
use super::path_text::PathText;
use super::{Answer, ApiCall, answer};
use crate::access::api::Refusal;
use crate::access::report::question;

pub(super) async fn end(call: ApiCall, PathText(id): PathText) -> Answer {
    // Needs a proven operator: an open listener proves nothing, and ACLs cover locks, not sessions.
    call.check(call.principal.is_super())?;
    let wrong = || Refusal::Bad("not a session id; write one like 0x100000000000001".to_owned());
    let session = question::session(&id).ok_or_else(wrong)?;
    let ended = call.api().end_session(&call.caller(), session).await;
    let result = match &ended {
        Ok(true) => "ok",
        Ok(false) => "NoSession",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    };
    let detail = format!("session={session}");
    let done = AdminRequest { op: "endSession", path: "", detail: &detail, result };
    call.context.http.access.record_admin(&done, &call.principal, &call.visitor);
    Ok(answer::document(StatusCode::OK, &Ended { ended: ended? }))
}
