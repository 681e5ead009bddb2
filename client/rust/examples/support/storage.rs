//! A fenced resource: a small HTTP service that refuses all but the newest holder.
//!
//! `PUT /{name}` with the header `Rowlock-Fence` stores the body. [`fenced`] is the middleware: a holder with
//! a smaller token than the largest one so far is answered 412, since it has lost the lock, whatever it
//! believes. Requests of an earlier holder that are under way end before a later one is let in, so no write
//! can slip in between. A service of several processes compares in its database instead (docs/fencing.md).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::put;
use axum::{Extension, Router};
use rowlock_client::{Fence, FencingToken, StaleToken};
use rowlock_env::net::Stream;
use rowlock_env::sync::watch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What is stored under a name, and the token of its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Of the newest holder.
    pub token: FencingToken,
    pub value: String,
}

pub struct Storage {
    pub address: String,
    service: Service,
}

#[derive(Clone)]
struct Service {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    changed: watch::Sender<()>,
}

/// The lock that guards a service, and the tokens that have come.
#[derive(Clone)]
struct Gate {
    lock: Arc<str>,
    fence: Arc<Fence>,
    refused: Arc<Mutex<Vec<FencingToken>>>,
}

/// Middleware: only requests of the newest holder of the lock reach the service.
async fn fenced(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let Some(value) = request.headers().get(Fence::HEADER) else {
        let problem = format!("send the header {}: LOCK;TOKEN\n", Fence::HEADER);
        return (StatusCode::PRECONDITION_REQUIRED, problem).into_response();
    };
    let Some(token) = value.to_str().ok().and_then(|value| Fence::token_in(value, &gate.lock)) else {
        let problem = format!("{} is not that of the lock {}\n", Fence::HEADER, gate.lock);
        return (StatusCode::BAD_REQUEST, problem).into_response();
    };
    match gate.fence.enter(token).await {
        Ok(_entered) => {
            request.extensions_mut().insert(token);
            next.run(request).await
        }
        Err(stale @ StaleToken { token, .. }) => {
            gate.refused.lock().unwrap_or_else(PoisonError::into_inner).push(token);
            (StatusCode::PRECONDITION_FAILED, format!("{stale}\n")).into_response()
        }
    }
}

async fn store(
    State(service): State<Service>,
    Path(name): Path<String>,
    Extension(token): Extension<FencingToken>,
    value: String,
) -> String {
    service.entries.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Entry { token, value });
    service.changed.send(());
    format!("stored with token {token}\n")
}

/// The stale tokens that came.
pub struct Refused(Arc<Mutex<Vec<FencingToken>>>);

impl Refused {
    /// In the order in which they came.
    pub fn all(&self) -> Vec<FencingToken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Storage {
    /// Starts the service on a free port, guarded by this lock.
    pub fn start(lock: &str) -> std::io::Result<(Storage, Refused)> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let service = Service { entries: Arc::default(), changed: watch::channel(()).0 };
        let gate = Gate { lock: lock.into(), fence: Arc::default(), refused: Arc::default() };
        let refused = Refused(Arc::clone(&gate.refused));
        let router = Router::new().route("/{name}", put(store)).with_state(service.clone());
        let router = router.layer(from_fn_with_state(gate, fenced));
        drop(rowlock_env::task::spawn("storage", async move { axum::serve(listener, router).await }));
        Ok((Storage { address, service }, refused))
    }

    /// What is stored under a name.
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.service.entries.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Waits until something is stored under a name.
    pub async fn stored(&self, name: &str) -> Entry {
        let mut changed = self.service.changed.subscribe();
        loop {
            if let Some(entry) = self.get(name) {
                return entry;
            }
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
    }
}

/// `PUT http://address/name` under a lock with this token: the status and the text of the answer.
pub async fn put_to(
    address: &str,
    name: &str,
    (lock, token): (&str, FencingToken),
    value: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = Stream::connect(address, Duration::from_secs(5)).await?;
    let (header, fence, length) = (Fence::HEADER, Fence::header(lock, token), value.len());
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nhost: {address}\r\n{header}: {fence}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{value}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let text = answer.split_once("\r\n\r\n").map(|(_, text)| text.trim_end().to_owned());
    status.zip(text).ok_or_else(|| std::io::Error::other("not an HTTP answer"))
}
