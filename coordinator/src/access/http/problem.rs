//! Errors of the HTTP listeners: `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock_proto::Right;
use serde_json::{Map, Value};

#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    members: Map<String, Value>,
    denied: Option<Denial>,
}

/// Denied permission, attached to the response for the audit log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// Missing right on a lock; `None`: an ACL denied the request.
    pub(super) missing: Option<Right>,
}

impl Problem {
    /// Returns a problem. `detail` is text for people and describes this request.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Problem { status, detail: detail.into(), members: Map::new(), denied: None }
    }

    /// Marks the refusal as a denied permission and adds the missing right for programs.
    pub(super) fn denied(self, missing: Option<Right>) -> Self {
        let problem = match missing {
            Some(right) => self.with("missing", right.as_str()),
            None => self,
        };
        Problem { denied: Some(Denial { missing }), ..problem }
    }

    /// Adds an extension member for programs.
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
        let document = Value::Object(body).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, content_type)], document).into_response();
        if let Some(denied) = self.denied {
            response.extensions_mut().insert(denied);
        }
        response
    }
}
