//! The OpenAPI document of the listener: `/v1/openapi.json`, and a page that shows it at `/docs`. Both tell
//! nothing of the cluster, and need no token.
//!
//! The document is a file, so that nodes contain no code that makes it: a test derives it from the types of
//! requests and answers. What `tests/paths.rs` says of each request is held to the router by a test, and to
//! real answers by schemathesis (docs/testing.md). OpenAPI 3.1 has no place for the methods LOCK and UNLOCK.

use axum::Router;

use crate::http::ui::{self, zipped};

/// Where the document is.
pub(super) const OPENAPI_PATH: &str = "/v1/openapi.json";

static FILES: [ui::File; 4] = [
    (OPENAPI_PATH, "application/json", zipped!("openapi.json")),
    ("/docs", "text/html; charset=utf-8", zipped!("page.html")),
    ("/docs/page.css", "text/css; charset=utf-8", zipped!("page.css")),
    ("/docs/page.js", "text/javascript; charset=utf-8", zipped!("page.js")),
];

/// Serves both, to everybody.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ui::add(Router::new(), &FILES)
}

#[cfg(test)]
mod tests;
