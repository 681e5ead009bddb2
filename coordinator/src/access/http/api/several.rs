//! `POST /v1/locks/acquire`: several locks, all or none.

use axum::extract::Request;
use rowlock_proto::Right;

use super::request::AcquireAll;
use super::{Answer, ApiCall, answer, body};

pub(super) async fn acquire(call: ApiCall, request: Request) -> Answer {
    call.check(call.principal.may_take_locks())?;
    let headers = request.headers().clone();
    let acquire: AcquireAll = body(request.into_body()).await?;
    let (parts, options) = acquire.options(&headers)?;
    parts.iter().try_for_each(|part| call.check_lock(&part.lock, Right::Take))?;
    let acquired = call.api().acquire(&call.caller(), &parts, options).await?;
    let questions = call.api().questions_to(acquired.lease);
    Ok(answer::acquired_all(&acquired, &parts, &questions))
}
