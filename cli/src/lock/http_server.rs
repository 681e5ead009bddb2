//! Minimal HTTP server: one request and one response per connection.
//!
//! Accepting never waits for clients: a new connection evicts a connection that keeps the server waiting, so
//! silent clients cannot block requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::{task, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// Longest head of a request; a longer head is refused.
const HEAD_MAX_BYTES: usize = 8 << 10;
/// Time from a free slot to the end of the head. A slower client is disconnected.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// Concurrent connections. Beyond this number a connection waiting for its client is evicted, the oldest
/// without a complete head first; while all requests are being handled, new connections wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

pub struct Request {
    pub method: String,
    /// URL path without the query.
    pub path: String,
    /// Request line and headers.
    pub head: String,
    pub body: Bytes,
}

pub struct Response {
    pub code: u16,
    pub body: Bytes,
    /// Allowed methods, in the response to a refused method.
    allow: Option<&'static str>,
}

impl Response {
    pub fn new(code: u16, body: impl Into<Bytes>) -> Response {
        Response { code, body: body.into(), allow: None }
    }

    pub fn text(code: u16, text: &str) -> Response {
        Response::new(code, text.to_owned())
    }

    /// Refuses a method; the path supports `methods` only.
    pub fn not_allowed(methods: &'static str) -> Response {
        Response { allow: Some(methods), ..Response::text(405, "") }
    }
}

/// Limits of a connection.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Time from a free slot to the client's close.
    pub exchange_max: Duration,
    /// Longest body; a longer one is refused.
    pub body_max_bytes: usize,
}

/// Accepts and handles connections until the process ends.
pub async fn serve<F>(
    listener: Listener,
    limits: Limits,
    answer: impl Fn(Request) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Response> + Send + 'static,
{
    let connections = Arc::<Connections>::default();
    let answer = Arc::new(answer);
    loop {
        let stream = listener.accept().await;
        let slot = ConnectionSlot::take(&connections).await;
        let answer = answer.clone();
        task::spawn("loopback-connection", async move {
            let exchange = exchange(stream, limits.body_max_bytes, &*answer, &slot);
            tokio::select! {
                // A disconnected client needs no response.
                _ = time::timeout(limits.exchange_max, exchange) => {}
                () = slot.connection.evicted.notified() => {}
            }
        });
    }
}

/// Open connections in the order of their accepts.
#[derive(Default)]
struct Connections {
    open: Mutex<BTreeMap<u64, Arc<OpenConnection>>>,
    /// Signals that a connection has ended or waits for its client again.
    changed: Notify,
}

struct OpenConnection {
    /// [`ClientStage`] as a number.
    stage: AtomicU8,
    evicted: Notify,
}

impl OpenConnection {
    fn new() -> OpenConnection {
        OpenConnection { stage: AtomicU8::new(ClientStage::Head as u8), evicted: Notify::new() }
    }
}

/// Stages of a connection. A smaller stage is evicted first.
#[derive(Clone, Copy)]
#[repr(u8)]
enum ClientStage {
    Head = 0,
    /// The response is sent; waits for the client's close.
    End,
    /// Reads the body, or writes the response.
    Transfer,
    /// Computes the response: not evictable.
    Answer,
}

/// Slot among [`CONNECTIONS_MAX`]. Dropping a slot frees it.
struct ConnectionSlot {
    all: Arc<Connections>,
    id: u64,
    connection: Arc<OpenConnection>,
}

impl ConnectionSlot {
    /// Takes a slot; waits while all connections compute responses.
    async fn take(all: &Arc<Connections>) -> ConnectionSlot {
        loop {
            if let Some((id, connection)) = all.make_room() {
                return ConnectionSlot { all: all.clone(), id, connection };
            }
            all.changed.notified().await;
        }
    }

    fn set_stage(&self, stage: ClientStage) {
        self.connection.stage.store(stage as u8, Relaxed);
        if !matches!(stage, ClientStage::Answer) {
            self.all.changed.notify_one();
        }
    }
}

impl Connections {
    /// Registers a new connection if a slot is free or if another connection can be evicted.
    fn make_room(&self) -> Option<(u64, Arc<OpenConnection>)> {
        let mut open = self.open.lock();
        if open.len() >= CONNECTIONS_MAX {
            let stage = |connection: &OpenConnection| connection.stage.load(Relaxed);
            let (id, _) = open
                .iter()
                .filter(|(_, connection)| stage(connection) < ClientStage::Answer as u8)
                .min_by_key(|(id, connection)| (stage(connection), **id))?;
            let id = *id;
            open.remove(&id).expect("the id was just found").evicted.notify_one();
        }
        let id = open.last_key_value().map_or(0, |(last, _)| last + 1);
        let connection = Arc::new(OpenConnection::new());
        open.insert(id, connection.clone());
        Some((id, connection))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.all.open.lock();
        // After an eviction another connection may have the number.
        if open.get(&self.id).is_some_and(|open| Arc::ptr_eq(open, &self.connection)) {
            open.remove(&self.id);
        }
        drop(open);
        self.all.changed.notify_one();
    }
}

async fn exchange<F: Future<Output = Response>>(
    mut stream: Stream,
    body_max_bytes: usize,
    answer: &impl Fn(Request) -> F,
    slot: &ConnectionSlot,
) -> io::Result<()> {
    let request = read(&mut stream, body_max_bytes, slot).await?;
    slot.set_stage(ClientStage::Answer);
    let is_head = request.as_ref().is_ok_and(|request| request.method == "HEAD");
    let response = match request {
        Ok(request) => answer(request).await,
        Err(refusal) => refusal,
    };
    slot.set_stage(ClientStage::Transfer);
    let reason = if response.code < 300 { "OK" } else { "-" };
    let allow = response.allow.map_or(String::new(), |methods| format!("Allow: {methods}\r\n"));
    let head = format!(
        "HTTP/1.1 {} {reason}\r\n{allow}Content-Type: application/json\r\nCache-Control: no-store\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        response.code,
        response.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if !is_head {
        stream.write_all(&response.body).await?;
    }
    stream.shutdown().await?;
    slot.set_stage(ClientStage::End);
    // Closing with unread input would discard the response before the client reads it.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Reads a complete request, or returns the refusal.
async fn read(
    stream: &mut Stream,
    body_max_bytes: usize,
    slot: &ConnectionSlot,
) -> io::Result<Result<Request, Response>> {
    let mut bytes = BytesMut::new();
    let end = time::timeout(HEAD_MAX, end_of_head(stream, &mut bytes)).await;
    let Some(end) = end.map_err(|_| io::ErrorKind::TimedOut)?? else {
        return Ok(Err(Response::text(431, "the head of the request is too long")));
    };
    slot.set_stage(ClientStage::Transfer);
    let head = String::from_utf8_lossy(&bytes.split_to(end + 4)).into_owned();
    let (method, path, length) = match head_of(&head, body_max_bytes) {
        Ok(known) => known,
        Err(refusal) => return Ok(Err(refusal)),
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    bytes.truncate(length);
    Ok(Ok(Request { method, path, head, body: bytes.freeze() }))
}

/// Reads up to the empty line after the head and returns its position; `None` if the head is too long.
async fn end_of_head(stream: &mut Stream, bytes: &mut BytesMut) -> io::Result<Option<usize>> {
    loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            return Ok(Some(end));
        }
        if bytes.len() >= HEAD_MAX_BYTES {
            return Ok(None);
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns method, path and length of the body.
fn head_of(head: &str, body_max_bytes: usize) -> Result<(String, String, usize), Response> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(Response::text(400, "this is no request"));
    };
    let mut length = Some(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Response::text(411, "the length of the body is needed"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
    }
    let length = length.ok_or_else(|| Response::text(400, "Content-Length is no number"))?;
    if length > body_max_bytes {
        return Err(Response::text(413, &format!("the body has more than {body_max_bytes} bytes")));
    }
    let path = target.split('?').next().unwrap_or_default();
    Ok((method.to_owned(), path.to_owned(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_dropped_and_bodies_of_unknown_length_refused() {
        let head = "POST /a/state?ID=5 HTTP/1.1\r\nHost: x\r\ncontent-length: 12\r\n\r\n";
        let (method, path, length) = head_of(head, 100).map_err(|response| response.code).unwrap();
        assert_eq!((&*method, &*path, length), ("POST", "/a/state", 12));
        for (head, code) in [
            ("GET\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            ("POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        ] {
            assert_eq!(head_of(head, 100).map_err(|response| response.code), Err(code), "{head}");
        }
    }
}
