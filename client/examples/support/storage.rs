//! A fenced resource: a small HTTP service that refuses whoever is not the newest holder.
//!
//! `PUT /{name}` with the header `Fencing-Token` stores the body. The service keeps the highest token that it
//! has seen per name: a lower one is answered 412, since its holder has lost the lock, whatever he believes.
//! The check and the write are one step, so no write can slip in between. That is all that a resource has to
//! do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::put;
use rowlock_client::FencingToken;
use rowlock_env::net::Stream;
use rowlock_env::sync::watch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What is stored under a name, and the highest token that came with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Of the newest holder.
    pub token: FencingToken,
    /// What he wrote.
    pub value: String,
}

/// What the service has.
#[derive(Debug, Default)]
struct Shelf {
    entries: BTreeMap<String, Entry>,
    refused: Vec<FencingToken>,
}

/// The running service.
pub struct Storage {
    /// `host:port`.
    pub address: String,
    shelf: Arc<Mutex<Shelf>>,
    changed: watch::Sender<()>,
}

#[derive(Clone)]
struct Service {
    shelf: Arc<Mutex<Shelf>>,
    changed: watch::Sender<()>,
}

async fn store(
    State(service): State<Service>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, String) {
    let token = headers.get(FencingToken::HEADER).and_then(|token| token.to_str().ok()?.parse().ok());
    let Some(token) = token else {
        let problem = format!("send the token of your lock in the header {}\n", FencingToken::HEADER);
        return (StatusCode::PRECONDITION_REQUIRED, problem);
    };
    let mut shelf = service.shelf.lock().unwrap_or_else(PoisonError::into_inner);
    let highest = shelf.entries.get(&name).map_or(FencingToken::default(), |entry| entry.token);
    let answer = if token < highest {
        shelf.refused.push(token);
        let problem =
            format!("stale token {token}: {name} has been written with token {highest}, the lock is lost\n");
        (StatusCode::PRECONDITION_FAILED, problem)
    } else {
        shelf.entries.insert(name, Entry { token, value: body });
        (StatusCode::OK, format!("stored with token {token}\n"))
    };
    service.changed.send(());
    answer
}

impl Storage {
    /// Starts the service on a free port.
    pub fn start() -> std::io::Result<Storage> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (shelf, changed) = (Arc::default(), watch::channel(()).0);
        let service = Service { shelf: Arc::clone(&shelf), changed: changed.clone() };
        let router = Router::new().route("/{name}", put(store)).with_state(service);
        drop(rowlock_env::task::spawn("storage", async move { axum::serve(listener, router).await }));
        Ok(Storage { address, shelf, changed })
    }

    /// What is stored under a name.
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).entries.get(name).cloned()
    }

    /// The stale tokens that came.
    pub fn refused(&self) -> Vec<FencingToken> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    /// Waits until something is stored under a name.
    pub async fn stored(&self, name: &str) -> Entry {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(entry) = self.get(name) {
                return entry;
            }
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
    }
}

/// `PUT http://address/name` with the token in its header: the status and the text of the answer.
pub async fn put_to(
    address: &str,
    name: &str,
    token: FencingToken,
    value: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = Stream::connect(address, Duration::from_secs(5)).await?;
    let (header, length) = (FencingToken::HEADER, value.len());
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nhost: {address}\r\n{header}: {token}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{value}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let text = answer.split_once("\r\n\r\n").map(|(_, text)| text.trim_end().to_owned());
    status.zip(text).ok_or_else(|| std::io::Error::other("not an HTTP answer"))
}
