//! The OpenAPI document of the listener: `/v1/openapi.json`, and a page that shows it at `/docs`. Both tell
//! nothing of the cluster, and need no token.
//!
//! The document is a file, so that nodes contain no code that makes it: a test derives it from the types of
//! requests and answers. What `tests/paths.rs` says of each request is held to the router by a test, and to
//! real answers by schemathesis (docs/testing.md). OpenAPI 3.1 has no place for the methods LOCK and UNLOCK.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::ui;

/// The document that is served.
const DOCUMENT: &str = include_str!("openapi/openapi.json");

/// Where the document is.
pub(super) const OPENAPI_PATH: &str = "/v1/openapi.json";

/// A file of the page that shows the document: its path, its kind, its bytes.
static FILES: [ui::File; 3] = [
    ("/docs", "text/html; charset=utf-8", include_str!("openapi/page.html")),
    ("/docs/page.css", "text/css; charset=utf-8", include_str!("openapi/page.css")),
    ("/docs/page.js", "text/javascript; charset=utf-8", include_str!("openapi/page.js")),
];

/// Serves both, to everybody.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let router = Router::new().route(OPENAPI_PATH, get(openapi));
    ui::add(router, &FILES)
}

async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests;
