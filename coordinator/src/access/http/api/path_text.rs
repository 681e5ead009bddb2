//! Variable part of a request path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::Problem;

/// Percent-decoded text. Undecodable text becomes a [`Problem`].
pub(super) struct PathText(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(text)| PathText(text)).map_err(|why| Problem::new(why.status(), why.body_text()))
    }
}
