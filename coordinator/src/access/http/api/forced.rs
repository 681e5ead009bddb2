//! `DELETE /v1/locks/{name}/holders/{token}`: needs the right `force`; the audit log records each request.

use rowlock_proto::FencingToken;

use super::super::access::AdminRequest;
use super::path_text::PathText;
use super::{Answer, ApiCall, allowed, answer};
use crate::api::{LockName, Refusal};

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
