//! Reports: `/v1/locks`, `/v1/queue`, `/v1/history`, `/v1/contention`, `/v1/sessions`, `/v1/access`. The
//! caller's identity selects the visible data: a certificate sees the data readable for its subject and
//! address, an operator's token sees all data, other callers see the data readable for their address.

use std::borrow::Cow;

use axum::Extension;
use axum::extract::State;
use axum::extract::connect_info::ConnectInfo;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::HttpContext;
use super::access::Principal;
use super::connection::Visitor;
use super::problem::Problem;
use crate::access::report::{Refusal, Requester};

/// Returns the report's question for a URI: `/v1/locks/NAME` is the queue of that lock.
pub(super) fn question_of(uri: &Uri) -> Cow<'_, str> {
    let Some(name) = uri.path().strip_prefix("/v1/locks/") else {
        return uri.path_and_query().map_or(uri.path(), |asked| asked.as_str()).into();
    };
    let query = uri.query().map_or(String::new(), |query| format!("&{query}"));
    format!("/v1/queue?lock={}{query}", name.replace('+', "%2B")).into()
}

/// Serves a report with the same document as for ZooKeeper clients with the same path and query.
pub(super) async fn report(
    State(context): State<HttpContext>,
    Extension(principal): Extension<Principal>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    uri: Uri,
) -> Response {
    answer(&context, (&principal, &visitor), &uri).await
}

/// Returns the report for a caller with permission to request the report.
pub(super) async fn answer(
    context: &HttpContext,
    (principal, visitor): (&Principal, &Visitor),
    uri: &Uri,
) -> Response {
    let reader = principal.reader(visitor);
    let what = question_of(uri);
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
