//! `/v1/locks`, `/v1/queue`, `/v1/history`, `/v1/sessions`, `/v1/access`: reports. They show what the caller
//! may read by what it has proven: a certificate its subject, an operator's token everything, and all others
//! what everybody may read (`world:anyone`).

use std::borrow::Cow;

use axum::Extension;
use axum::extract::State;
use axum::extract::connect_info::ConnectInfo;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::HttpContext;
use super::access::Asker;
use super::connection::Visitor;
use super::problem::Problem;
use crate::report::{Refusal, Requester};

/// The question of a request: `/v1/locks/NAME` is the queue of that lock.
pub(super) fn asked(uri: &Uri) -> Cow<'_, str> {
    let Some(name) = uri.path().strip_prefix("/v1/locks/") else {
        return uri.path_and_query().map_or(uri.path(), |asked| asked.as_str()).into();
    };
    let query = uri.query().map_or(String::new(), |query| format!("&{query}"));
    format!("/v1/queue?lock={}{query}", name.replace('+', "%2B")).into()
}

/// Answers with the document that a client gets for the same path and query.
pub(super) async fn report(
    State(context): State<HttpContext>,
    Extension(asker): Extension<Asker>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    uri: Uri,
) -> Response {
    answer(&context, (&asker, &visitor), &uri).await
}

/// Its answer to this asker, who may ask for it.
pub(super) async fn answer(
    context: &HttpContext,
    (asker, visitor): (&Asker, &Visitor),
    uri: &Uri,
) -> Response {
    let reader = asker.reader();
    let what = asked(uri);
    let place = match context.reports.begin(&reader.who, Requester::Http(visitor.address.ip())) {
        Ok(place) => place,
        Err(refusal) => return problem(&refusal).into_response(),
    };
    match place.answer(context.source.freeze(), &what, reader).await {
        Ok(document) => {
            let content_type = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, content_type)], document + "\n").into_response()
        }
        Err(refusal) => problem(&refusal).into_response(),
    }
}

pub(super) fn problem(refusal: &Refusal) -> Problem {
    let status = match refusal {
        Refusal::NoSuchReport(_) | Refusal::NotThere(_) => StatusCode::NOT_FOUND,
        Refusal::BadQuestion(_) => StatusCode::BAD_REQUEST,
        Refusal::NotPermitted(_) | Refusal::NoRight(..) => StatusCode::FORBIDDEN,
        Refusal::NotKept(_) => StatusCode::NOT_IMPLEMENTED,
        Refusal::Busy | Refusal::NotNow(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let problem = Problem::new(status, refusal.to_string());
    match refusal {
        Refusal::NotPermitted(_) => problem.denied(None),
        Refusal::NoRight(right, _) => problem.denied(Some(*right)),
        _ => problem,
    }
}
