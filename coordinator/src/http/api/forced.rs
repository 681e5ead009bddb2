//! `DELETE /v1/locks/{name}/holders/{token}`: for operators, and recorded in the audit log.

use rowlock_proto::FencingToken;

use super::super::access::Done;
use super::path_text::PathText;
use super::{Answer, Asked, answer};
use crate::api::{LockName, Refusal};
use crate::tokens::Role;

pub(super) async fn force(asked: Asked, PathText(rest): PathText) -> Answer {
    let (lock, token) = rest.rsplit_once('/').ok_or_else(|| asked.unknown())?;
    let name = lock.strip_suffix("/holders").ok_or_else(|| asked.unknown())?;
    asked.check(asked.asker.may(&Role::Operator))?;
    let name: LockName = name.parse()?;
    let wrong = || Refusal::Bad("the token is no number".to_owned());
    let token = token.parse().map(FencingToken).map_err(|_| wrong())?;
    let forced = asked.api().force(&asked.caller(), &name, token).await;
    let result = match &forced {
        Ok(true) => "ok",
        Ok(false) => "NotHeld",
        Err(Refusal::NotPermitted) => "NoAuth",
        Err(Refusal::Unknown) => "unknown",
        Err(_) => "failed",
    };
    let detail = format!("token={token}");
    let done = Done { op: "forceRelease", path: name.path(), detail: &detail, result };
    asked.context.http.access.record_admin(&done, &asked.asker, &asked.visitor);
    Ok(answer::released(forced?))
}
