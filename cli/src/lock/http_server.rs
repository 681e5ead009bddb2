//! A small HTTP server: one request on a connection, one answer.
//!
//! Accepting never waits for clients: a connection that keeps the server waiting gives way to a new one, so
//! that silent ones keep no request from its answer.

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

/// Head of a request; a longer one is refused.
const HEAD_MAX_BYTES: usize = 8 << 10;
/// From the accept to the end of the head. Beyond: the connection is closed.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// Connections at once. Beyond: one that waits for its client gives way, the oldest without a head first;
/// where all requests are being answered, new connections wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

pub struct Incoming {
    pub method: String,
    /// Path of the URL, without the query.
    pub path: String,
    /// Request line and headers.
    pub head: String,
    pub body: Bytes,
}

pub struct Outgoing {
    pub code: u16,
    pub body: Bytes,
    /// Header of a refused method.
    allow: Option<&'static str>,
}

impl Outgoing {
    pub fn new(code: u16, body: impl Into<Bytes>) -> Outgoing {
        Outgoing { code, body: body.into(), allow: None }
    }

    pub fn text(code: u16, text: &str) -> Outgoing {
        Outgoing::new(code, text.to_owned())
    }

    /// The path takes these methods only.
    pub fn not_allowed(methods: &'static str) -> Outgoing {
        Outgoing { allow: Some(methods), ..Outgoing::text(405, "") }
    }
}

/// Answers each connection within `most` of its accept, until the process ends. Larger bodies are refused.
pub async fn serve<F>(
    listener: Listener,
    (most, body_max_bytes): (Duration, usize),
    answer: impl Fn(Incoming) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Outgoing> + Send + 'static,
{
    let connections = Arc::<Connections>::default();
    let answer = Arc::new(answer);
    loop {
        let stream = listener.accept().await;
        let slot = ConnectionSlot::take(&connections).await;
        let answer = answer.clone();
        task::spawn("loopback-connection", async move {
            let exchange = exchange(stream, body_max_bytes, (&*answer, &slot));
            tokio::select! {
                // A client that hangs up wants no answer.
                _ = time::timeout(most, exchange) => {}
                () = slot.connection.gives_way.notified() => {}
            }
        });
    }
}

/// The open connections, in the order in which they came.
#[derive(Default)]
struct Connections {
    open: Mutex<BTreeMap<u64, Arc<OpenConnection>>>,
    /// One has ended, or waits for its client again.
    changed: Notify,
}

struct OpenConnection {
    /// One of [`ClientStage`], as a number.
    stage: AtomicU8,
    gives_way: Notify,
}

impl OpenConnection {
    fn new() -> OpenConnection {
        OpenConnection { stage: AtomicU8::new(ClientStage::Head as u8), gives_way: Notify::new() }
    }
}

/// What a connection waits for. Those of a smaller stage give way first.
#[derive(Clone, Copy)]
#[repr(u8)]
enum ClientStage {
    /// The head of the request.
    Head = 0,
    /// Its client closes it; the answer is sent.
    End,
    /// Its client sends the body, or takes the answer.
    Transfer,
    /// The answer: it does not give way.
    Answer,
}

/// One of [`CONNECTIONS_MAX`]. Dropping it makes room.
struct ConnectionSlot {
    all: Arc<Connections>,
    id: u64,
    connection: Arc<OpenConnection>,
}

impl ConnectionSlot {
    /// Waits while all connections are being answered.
    async fn take(all: &Arc<Connections>) -> ConnectionSlot {
        loop {
            if let Some((id, connection)) = all.make_room() {
                return ConnectionSlot { all: all.clone(), id, connection };
            }
            all.changed.notified().await;
        }
    }

    fn waits_for(&self, stage: ClientStage) {
        self.connection.stage.store(stage as u8, Relaxed);
        if !matches!(stage, ClientStage::Answer) {
            self.all.changed.notify_one();
        }
    }
}

impl Connections {
    /// A place for a new connection, if there is one or another connection gives way.
    fn make_room(&self) -> Option<(u64, Arc<OpenConnection>)> {
        let mut open = self.open.lock();
        if open.len() >= CONNECTIONS_MAX {
            let stage = |connection: &OpenConnection| connection.stage.load(Relaxed);
            let (id, _) = open
                .iter()
                .filter(|(_, it)| stage(it) < ClientStage::Answer as u8)
                .min_by_key(|(id, it)| (stage(it), **id))?;
            let id = *id;
            open.remove(&id).expect("it was found").gives_way.notify_one();
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
        // After it gave way its number may be that of another one.
        if open.get(&self.id).is_some_and(|it| Arc::ptr_eq(it, &self.connection)) {
            open.remove(&self.id);
        }
        drop(open);
        self.all.changed.notify_one();
    }
}

async fn exchange<F: Future<Output = Outgoing>>(
    mut stream: Stream,
    body_max_bytes: usize,
    (answer, slot): (&impl Fn(Incoming) -> F, &ConnectionSlot),
) -> io::Result<()> {
    let asked = read(&mut stream, body_max_bytes, slot).await?;
    slot.waits_for(ClientStage::Answer);
    let is_head = asked.as_ref().is_ok_and(|asked| asked.method == "HEAD");
    let said = match asked {
        Ok(asked) => answer(asked).await,
        Err(refusal) => refusal,
    };
    slot.waits_for(ClientStage::Transfer);
    let reason = if said.code < 300 { "OK" } else { "-" };
    let allow = said.allow.map_or(String::new(), |methods| format!("Allow: {methods}\r\n"));
    let head = format!(
        "HTTP/1.1 {} {reason}\r\n{allow}Content-Type: application/json\r\nCache-Control: no-store\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        said.code,
        said.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if !is_head {
        stream.write_all(&said.body).await?;
    }
    stream.shutdown().await?;
    slot.waits_for(ClientStage::End);
    // A close with something unread would take the answer away from the client.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// A whole request, or how it is refused.
async fn read(
    stream: &mut Stream,
    body_max_bytes: usize,
    slot: &ConnectionSlot,
) -> io::Result<Result<Incoming, Outgoing>> {
    let mut bytes = BytesMut::new();
    let end = time::timeout(HEAD_MAX, end_of_head(stream, &mut bytes)).await;
    let Some(end) = end.map_err(|_| io::ErrorKind::TimedOut)?? else {
        return Ok(Err(Outgoing::text(431, "the head of the request is too long")));
    };
    slot.waits_for(ClientStage::Transfer);
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
    Ok(Ok(Incoming { method, path, head, body: bytes.freeze() }))
}

/// Where the empty line is behind the head. `None`: the head is too long.
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

/// Method, path and length of the body.
fn head_of(head: &str, body_max_bytes: usize) -> Result<(String, String, usize), Outgoing> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(Outgoing::text(400, "this is no request"));
    };
    let mut length = Some(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Outgoing::text(411, "the length of the body is needed"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
    }
    let length = length.ok_or_else(|| Outgoing::text(400, "Content-Length is no number"))?;
    if length > body_max_bytes {
        return Err(Outgoing::text(413, &format!("the body has more than {body_max_bytes} bytes")));
    }
    let path = target.split('?').next().unwrap_or_default();
    Ok((method.to_owned(), path.to_owned(), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_without_its_query_and_bodies_of_unknown_length_are_refused() {
        let head = "POST /a/state?ID=5 HTTP/1.1\r\nHost: x\r\ncontent-length: 12\r\n\r\n";
        let (method, path, length) = head_of(head, 100).map_err(|said| said.code).unwrap();
        assert_eq!((&*method, &*path, length), ("POST", "/a/state", 12));
        for (head, code) in [
            ("GET\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            ("POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        ] {
            assert_eq!(head_of(head, 100).map_err(|said| said.code), Err(code), "{head}");
        }
    }
}
