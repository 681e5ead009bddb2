//! The OpenAPI document of the listener: `/v1/openapi.json`, and a page that shows it at `/docs`. Both tell
//! nothing of the cluster, and need no token.
//!
//! What `paths.rs` says of each request is held to the router by a test, and to real answers by schemathesis
//! (docs/testing.md). The methods LOCK and UNLOCK have no place in OpenAPI 3.1.

mod kinds;
mod paths;

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{RefOr, Required, ServerBuilder};
use utoipa::{IntoResponses as _, Modify, OpenApi};

use super::documents::ProblemDocument;
use crate::http::ui;

/// The document that is served.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document() + "\n");

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rowlock",
        version = "1",
        description = "Locks, elections and znodes by HTTP. Guarantees, limits and what a retry does: docs/rest.md.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    paths(
        paths::new_lease, paths::keep_alive, paths::end_lease,
        paths::one_lock, paths::acquire, paths::acquire_all, paths::release, paths::verify, paths::force,
        paths::campaign, paths::resign, paths::leader,
        paths::get_root, paths::get_znode, paths::set_znode, paths::create_znode, paths::delete_znode,
        paths::lock_state, paths::unlock_state,
        paths::locks, paths::queue, paths::history, paths::sessions, paths::end_session, paths::status, paths::watch,
        paths::openapi,
    ),
    components(schemas(ProblemDocument)),
    modifiers(&Everywhere),
)]
struct Document;

/// What is so of all requests.
struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = |scheme: HttpAuthScheme, what: &str| {
            SecurityScheme::Http(HttpBuilder::new().scheme(scheme).description(Some(what)).build())
        };
        let components = document.components.get_or_insert_default();
        components
            .add_security_scheme("token", scheme(HttpAuthScheme::Bearer, "A token of `rowlock token new`"));
        components.add_security_scheme(
            "password",
            scheme(HttpAuthScheme::Basic, "The same as a password, with any user, for locks of states"),
        );
        document.servers = Some(vec![ServerBuilder::new().url("/").description(Some("This node")).build()]);
        for (path, item) in &mut document.paths.paths {
            let is_open = path == OPENAPI_PATH;
            let operations =
                [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten();
            for operation in operations.filter(|_| !is_open) {
                add_problems(operation);
                mark_optional_body(operation);
                // An open listener on loopback asks for nothing.
                let none: [&str; 0] = [];
                let token = SecurityRequirement::new("token", none);
                let password = path.starts_with(super::state_lock::PREFIX);
                let password = password.then(|| SecurityRequirement::new("password", none));
                let all = [SecurityRequirement::default(), token].into_iter().chain(password);
                operation.security = Some(all.collect());
            }
        }
    }
}

/// An empty body is a document without fields: where no field must be there, no body must.
fn mark_optional_body(operation: &mut Operation) {
    let needs_body = ["acquire_all", "verify", "lock_state", "unlock_state"];
    let is_needed = operation.operation_id.as_deref().is_some_and(|id| needs_body.contains(&id));
    if let Some(RefOr::T(body)) = operation.request_body.as_mut().filter(|_| !is_needed) {
        body.required = Some(Required::False);
    }
}

/// What may happen to every request, and to those with a body, where the request itself says nothing of it.
fn add_problems(operation: &mut Operation) {
    let of_body = operation.request_body.is_some().then(kinds::Body::responses);
    for (status, problem) in kinds::Anything::responses().into_iter().chain(of_body.into_iter().flatten()) {
        operation.responses.responses.entry(status).or_insert(problem);
    }
}

/// Where the document is.
pub(super) const OPENAPI_PATH: &str = "/v1/openapi.json";

/// As text, with two spaces for each level: docs/openapi.json.
fn document() -> String {
    Document::openapi().to_pretty_json().expect("Invariant: a document is maps, lists and text")
}

/// A file of the page that shows the document: its path, its kind, its bytes.
const FILES: [ui::File; 3] = [
    ("/docs", "text/html; charset=utf-8", include_str!("openapi/page.html")),
    ("/docs/page.css", "text/css; charset=utf-8", include_str!("openapi/page.css")),
    ("/docs/page.js", "text/javascript; charset=utf-8", include_str!("openapi/page.js")),
];

/// Serves both, to everybody.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let router = Router::new().route(OPENAPI_PATH, get(openapi));
    FILES
        .iter()
        .fold(router, |router, &file| router.route(file.0, get(move || async move { ui::answer(file) })))
}

async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], DOCUMENT.as_str()).into_response()
}

#[cfg(test)]
mod tests;
