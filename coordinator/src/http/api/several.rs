//! `POST /v1/locks/acquire`: several locks, all or none.

use axum::Extension;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::response::Response;

use super::request::AcquireAll;
use super::{ApiContext, Asked, Asking, Denied, answer, body, path_of};

pub(super) async fn acquire(
    State(context): State<ApiContext>,
    (Extension(asker), ConnectInfo(visitor)): Asking,
    request: Request,
) -> Response {
    let asked = Asked { context: &context, visitor: &visitor, asker: &asker, path: path_of(&request) };
    let run = async {
        asked.check(asker.may_lock_something())?;
        let headers = request.headers().clone();
        let wanted: AcquireAll = body(request.into_body()).await?;
        let (parts, wanted) = wanted.wanted(&headers).map_err(answer::refusal)?;
        parts.iter().try_for_each(|part| asked.check_lock(&part.lock))?;
        let stands = context.api.acquire_all(&asked.caller(), &parts, wanted).await;
        Ok::<Response, Denied>(answer::standings(&stands.map_err(answer::refusal)?, &parts))
    };
    run.await.unwrap_or_else(|denied| *denied)
}
