//! `/v1/elections/{name}/`: campaign, resign, leader.

use std::time::Duration;

use axum::Extension;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::response::Response;
use rowlock_proto::Zxid;

use super::path_text::PathText;
use super::request::{Campaign, Release};
use super::{ApiContext, Asked, Asking, Denied, answer, body, path_of};
use crate::api::{self, LockName, Refusal};
use crate::report::question::Scope;

pub(super) async fn campaign(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    PathText(name): PathText,
    request: Request,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    let run = async {
        let election = own(&asked, &name)?;
        let headers = request.headers().clone();
        let campaign: Campaign = body(request.into_body()).await?;
        let wanted = campaign.wanted(&headers).map_err(answer::refusal)?;
        let standing = context.api.campaign(&asked.caller(), &election, wanted).await;
        Ok::<Response, Denied>(answer::standing(&standing.map_err(answer::refusal)?))
    };
    run.await.unwrap_or_else(|denied| *denied)
}

pub(super) async fn resign(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    PathText(name): PathText,
    request: Request,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    let run = async {
        let election = own(&asked, &name)?;
        let headers = request.headers().clone();
        let release: Release = body(request.into_body()).await?;
        let (secret, which) = release.what(&headers).map_err(answer::refusal)?;
        let released = context.api.release(&asked.caller(), &election, (&secret, &which)).await;
        Ok::<Response, Denied>(answer::released(released.map_err(answer::refusal)?))
    };
    run.await.unwrap_or_else(|denied| *denied)
}

pub(super) async fn leader(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    PathText(name): PathText,
    request: Request,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    let query = request.uri().query().unwrap_or_default().to_owned();
    drop(request);
    let run = async {
        let election = api::election(&name).map_err(answer::refusal)?;
        asked.check(asker.may_see(&Scope::Lock(election.path().to_owned())))?;
        let poll = poll(&query).map_err(answer::refusal)?;
        let led = context.api.leader(&asked.caller(), &election, poll).await;
        Ok::<Response, Denied>(answer::led(&led.map_err(answer::refusal)?))
    };
    run.await.unwrap_or_else(|denied| *denied)
}

/// The election, if its lock may be used.
fn own(asked: &Asked<'_>, name: &str) -> Result<LockName, Denied> {
    let election = api::election(name).map_err(answer::refusal)?;
    asked.check_lock(&election)?;
    Ok(election)
}

/// `after` and `wait_ms`.
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
