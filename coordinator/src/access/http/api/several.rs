//! `POST /v1/locks/acquire`: several locks, all or none.

use axum::extract::Request;
use rowlock_proto::Right;

use super::request::AcquireAll;
use super::{Answer, ApiCall, answer, body};

pub(super) async fn acquire(call: ApiCall, request: Request) -> Answer {
    call.check(call.principal.may_take_locks())?;
    let headers = request.headers().clone();
    let wanted: AcquireAll = body(request.into_body()).await?;
    let (parts, wanted) = wanted.wanted(&headers)?;
    parts.iter().try_for_each(|part| call.check_lock(&part.lock, Right::Take))?;
    let stands = call.api().acquire_all(&call.caller(), &parts, wanted).await?;
    let questions = call.api().questions_to(stands.lease);
    Ok(answer::standings(&stands, &parts, &questions))
}
