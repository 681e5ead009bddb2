//! Requests on locks, elections and sessions beside `acquire`, `release` and `verify` of one lock: questions
//! to holders, several locks at once, forced releases, the end of a session, and `/v1/elections/{name}/` with
//! campaign, resign and leader.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use rowlock_proto::{FencingToken, Right, Zxid};

use super::super::access::AdminRequest;
use super::answer::{self, Ended};
use super::request::{AcquireAll, AskHolders, Campaign, PathText, Release};
use super::{Answer, ApiCall, Denied, acquired, allowed, body};
use crate::access::api::{self, LockName, Refusal};
use crate::access::report::question::{self, Scope};

/// Serves `POST /v1/locks/{name}/ask`. A question with a deadline needs the right to force, and is recorded
/// in the audit log.
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

/// Serves `DELETE /v1/locks/{name}/holders/{token}`: needs the right `force`; the audit log records each
/// request.
pub(super) async fn force(call: ApiCall, PathText(rest): PathText) -> Answer {
    let holder =
        rest.rsplit_once('/').and_then(|(lock, token)| Some((lock.strip_suffix("/holders")?, token)));
    let (name, token) = holder.ok_or_else(|| call.not_allowed(allowed(&rest)))?;
    let name: LockName = name.parse()?;
    call.check_force(&name)?;
    let wrong = || Refusal::Bad("the token is not a number".to_owned());
    let token = token.parse().map(FencingToken).map_err(|_| wrong())?;
    let forced = call.api().force(&call.caller(), &name, token).await;
    let result = audited(forced.as_ref().map(|done| *done));
    let detail = format!("token={token}");
    let done = AdminRequest { op: "forceRelease", path: name.path(), detail: &detail, result };
    call.context.http.access.record_admin(&done, &call.principal, &call.visitor);
    Ok(answer::released(forced?))
}

/// Returns the outcome of a forced release as the audit log has it; `Ok` says whether the lock was held.
pub(super) fn audited(forced: Result<bool, &Refusal>) -> &'static str {
    match forced {
        Ok(true) => "ok",
        Ok(false) => "NotHeld",
        Err(Refusal::NotPermitted | Refusal::NoRight(_)) => "NoAuth",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    }
}

/// Acquires several locks, all or none: `POST /v1/locks/acquire`.
pub(super) async fn acquire_all(call: ApiCall, request: Request) -> Answer {
    call.check(call.principal.may_take_locks())?;
    let headers = request.headers().clone();
    let acquire: AcquireAll = body(request.into_body()).await?;
    let (parts, options) = acquire.options(&headers)?;
    parts.iter().try_for_each(|part| call.check_lock(&part.lock, Right::Take))?;
    let acquired = call.api().acquire(&call.caller(), &parts, options).await?;
    let questions = call.api().questions_to(acquired.lease);
    Ok(answer::acquired_all(&acquired, &parts, &questions))
}

/// Serves `DELETE /v1/sessions/{session}`: for operators; the audit log records each request.
pub(super) async fn end_session(call: ApiCall, PathText(id): PathText) -> Answer {
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

pub(super) async fn campaign(call: ApiCall, PathText(name): PathText, request: Request) -> Answer {
    let election = election_of(&call, &name)?;
    let headers = request.headers().clone();
    let campaign: Campaign = body(request.into_body()).await?;
    let options = campaign.options(&headers)?;
    Ok(acquired(&call, &call.api().campaign(&call.caller(), &election, options).await?))
}

pub(super) async fn resign(call: ApiCall, PathText(name): PathText, request: Request) -> Answer {
    let election = election_of(&call, &name)?;
    let headers = request.headers().clone();
    let release: Release = body(request.into_body()).await?;
    let (secret, which) = release.what(&headers)?;
    Ok(answer::released(call.api().release(&call.caller(), &election, (&secret, &which)).await?))
}

pub(super) async fn leader(call: ApiCall, PathText(name): PathText, uri: Uri) -> Answer {
    let election = api::election(&name)?;
    let scope = Scope::Lock(election.path().to_owned());
    call.check_role(call.principal.may_see(&scope), Right::See, election.path())?;
    let poll = poll(uri.query().unwrap_or_default())?;
    Ok(answer::led(&call.api().leader(&call.caller(), &election, poll).await?))
}

/// Returns the election's lock if the caller may take the lock.
fn election_of(call: &ApiCall, name: &str) -> Result<LockName, Denied> {
    let election = api::election(name)?;
    call.check_lock(&election, Right::Take)?;
    Ok(election)
}

fn poll(query: &str) -> Result<(Option<Zxid>, Duration), Refusal> {
    let (mut after, mut wait_ms) = (None, None);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let wrong = || Refusal::Bad(format!("leader takes after and wait_ms once, as numbers, not {part}"));
        let number = value.parse().ok().filter(|number: &i64| *number >= 0).ok_or_else(wrong)?;
        let slot = match name {
            "after" => &mut after,
            "wait_ms" => &mut wait_ms,
            _ => return Err(wrong()),
        };
        if slot.replace(number).is_some() {
            return Err(wrong());
        }
    }
    Ok((after.map(Zxid), Duration::from_millis(wait_ms.unwrap_or(0).unsigned_abs())))
}
