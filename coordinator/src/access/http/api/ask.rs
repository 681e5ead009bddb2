//! `POST /v1/locks/{name}/ask`. A question with a deadline needs the right to
//! force, and is recorded in the audit log.

use axum::extract::Request;

use super::super::access::AdminRequest;
use super::request::AskHolders;
use super::{Answer, ApiCall, answer, body};
use crate::access::api::{LockName, Refusal};

pub(super) async fn ask(call: &ApiCall, name: &LockName, request: Request) -> Answer {
    let wanted: AskHolders = body(request.into_body()).await?;
    let has_deadline = wanted.has_deadline();
    if has_deadline {
        call.check_force(name)?;
    }
    let caller = call.caller();
    let ask = wanted.ask(name, &caller.identities)?;
    let detail = format!("within_ms={} reason={}", ask.within_ms, ask.reason);
    let done = call.api().ask(&caller, ask).await;
    if has_deadline {
        let result = match &done {
            Ok(_) => "ok",
            Err(Refusal::NotPermitted | Refusal::NoRight(_)) => "NoAuth",
            Err(Refusal::Unknown) => "unknown",
            Err(_) => "failed",
        };
        let done = AdminRequest { op: "ask", path: name.path(), detail: &detail, result };
        call.context.http.access.record_admin(&done, &call.principal, &call.visitor);
    }
    let (count, holders) = done?;
    Ok(answer::asked(count, &holders))
}
