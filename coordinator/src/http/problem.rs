//! Errors of the HTTP listener: `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    members: Map<String, Value>,
}

impl Problem {
    /// `detail` is for people and says what this very request met.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Problem { status, detail: detail.into(), members: Map::new() }
    }

    /// An extension member, for programs.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.members;
        body.insert("type".to_owned(), "about:blank".into());
        body.insert("title".to_owned(), self.status.canonical_reason().unwrap_or("Error").into());
        body.insert("status".to_owned(), self.status.as_u16().into());
        body.insert("detail".to_owned(), self.detail.into());
        let content_type = HeaderValue::from_static("application/problem+json");
        (self.status, [(header::CONTENT_TYPE, content_type)], Value::Object(body).to_string()).into_response()
    }
}
