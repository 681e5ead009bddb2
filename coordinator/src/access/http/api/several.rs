//! `POST /v1/locks/acquire`: several locks, all or none.

use axum::extract::Request;
use rowlock_proto::Right;

use super::request::AcquireAll;
use super::{Answer, Asked, answer, body};

pub(super) async fn acquire(asked: Asked, request: Request) -> Answer {
    asked.check(asked.asker.may_lock_something())?;
    let headers = request.headers().clone();
    let wanted: AcquireAll = body(request.into_body()).await?;
    let (parts, wanted) = wanted.wanted(&headers)?;
    parts.iter().try_for_each(|part| asked.check_lock(&part.lock, Right::Take))?;
    let stands = asked.api().acquire_all(&asked.caller(), &parts, wanted).await?;
    let questions = asked.api().questions_to(stands.lease);
    Ok(answer::standings(&stands, &parts, &questions))
}
