//! `/v1/elections/{name}/`: campaign, resign, leader.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Uri;
use rowlock_proto::{Right, Zxid};

use super::path_text::PathText;
use super::request::{Campaign, Release};
use super::{Answer, ApiCall, Denied, acquired, answer, body};
use crate::access::api::{self, LockName, Refusal};
use crate::access::report::question::Scope;

pub(super) async fn campaign(call: ApiCall, PathText(name): PathText, request: Request) -> Answer {
    let election = own(&call, &name)?;
    let headers = request.headers().clone();
    let campaign: Campaign = body(request.into_body()).await?;
    let options = campaign.options(&headers)?;
    Ok(acquired(&call, &call.api().campaign(&call.caller(), &election, options).await?))
}

pub(super) async fn resign(call: ApiCall, PathText(name): PathText, request: Request) -> Answer {
    let election = own(&call, &name)?;
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
fn own(call: &ApiCall, name: &str) -> Result<LockName, Denied> {
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
