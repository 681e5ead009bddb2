//! `DELETE /v1/sessions/{session}`: for operators, and recorded in the audit log.

use axum::http::StatusCode;

use super::super::access::AdminRequest;
use super::documents::Ended;
use super::path_text::PathText;
use super::{Answer, Asked, answer};
use crate::api::Refusal;
use crate::report::question;

pub(super) async fn end(asked: Asked, PathText(id): PathText) -> Answer {
    // An open listener proves nothing, and a session is not a matter of ACLs, as a single lock is.
    asked.check(asked.asker.is_super())?;
    let wrong = || Refusal::Bad("that is no session, like 0x100000000000001".to_owned());
    let session = question::session(&id).ok_or_else(wrong)?;
    let ended = asked.api().end_session(&asked.caller(), session).await;
    let result = match &ended {
        Ok(true) => "ok",
        Ok(false) => "NoSession",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    };
    let detail = format!("session={session}");
    let done = AdminRequest { op: "endSession", path: "", detail: &detail, result };
    asked.context.http.access.record_admin(&done, &asked.asker, &asked.visitor);
    Ok(answer::document(StatusCode::OK, &Ended { ended: ended? }))
}
