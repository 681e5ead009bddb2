//! OpenAPI document of the listener at `/v1/openapi.json`, and a page for reading the document at `/docs`.
//! Both contain no data of the cluster and need no token.
//!
//! The document is a generated file: a test derives the document from the types of requests and responses, so
//! nodes contain no generator. A test compares `tests/paths.rs` with the router, and schemathesis compares
//! the document with real responses (docs/testing.md). OpenAPI 3.1 cannot describe the methods LOCK and
//! UNLOCK.

use axum::Router;

use crate::access::http::ui::{self, zipped};

pub(super) const OPENAPI_PATH: &str = "/v1/openapi.json";

static FILES: [ui::File; 4] = [
    (OPENAPI_PATH, "application/json", zipped!("openapi.json")),
    ("/docs", "text/html; charset=utf-8", zipped!("page.html")),
    ("/docs/page.css", "text/css; charset=utf-8", zipped!("page.css")),
    ("/docs/page.js", "text/javascript; charset=utf-8", zipped!("page.js")),
];

/// Returns the public routes of the document and the page.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ui::add(Router::new(), &FILES)
}

#[cfg(test)]
mod tests;
