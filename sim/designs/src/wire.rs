//! Requests, replies and pushes over a connection of the simulated network, used by all models.
//!
//! A frame is four bytes of length and JSON. A client's [`Connection`] has any number of unanswered requests;
//! a server answers the requests of one connection in their order ([`serve`]). A [`Meter`] counts every sent
//! frame. This module must never retry: the design handles unanswered requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::net::{Listener, ReadHalf, Stream, WriteHalf};
use rowlock_env::task::{self, Task};
use rowlock_env::time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

/// Longest frame, in bytes.
const FRAME_MAX: usize = 1 << 20;
/// Bound on unwritten frames; a connection with more is closed.
const OUTGOING_MAX: usize = 4_096;
/// Bound on unread pushes of a client; a connection with more is closed.
const PUSHES_MAX: usize = 4_096;

/// Messages of two sides.
pub trait Protocol: Send + Sync + 'static {
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// Answer of the server, one per request.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// Unsolicited message of the server.
    type Push: Serialize + DeserializeOwned + Send + 'static;
}

/// Optional counter of messages.
#[derive(Clone, Debug, Default)]
pub struct Meter(Option<Arc<AtomicU64>>);

impl Meter {
    pub fn counting() -> Self {
        Meter(Some(Arc::default()))
    }

    /// Creates a meter that does not count: for pings between servers, which exist without any lock.
    pub fn off() -> Self {
        Meter(None)
    }

    pub fn count(&self) {
        if let Some(n) = &self.0 {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn total(&self) -> u64 {
        self.0.as_ref().map_or(0, |n| n.load(Ordering::Relaxed))
    }
}

/// Reason for a missing reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    NoConnection,
    /// The request may have taken effect.
    Unanswered,
}

#[derive(Serialize, Deserialize)]
struct Asked<Q> {
    id: u64,
    body: Q,
}

#[derive(Serialize, Deserialize)]
enum Said<R, P> {
    Reply(u64, R),
    Push(P),
}

/// Client's side of a connection. Dropping the value closes the connection.
pub struct Connection<P: Protocol> {
    outgoing: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting<P>>>,
    reader: Task<()>,
}

struct Waiting<P: Protocol> {
    next_id: u64,
    /// Callers by request; `None` after the connection's end.
    replies: Option<BTreeMap<u64, oneshot::Sender<P::Reply>>>,
}

impl<P: Protocol> Drop for Connection<P> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl<P: Protocol> Connection<P> {
    /// Connects within `timeout`. Pushes arrive on the receiver until the connection ends.
    pub async fn open(
        addr: &str,
        timeout: Duration,
        meter: &Meter,
    ) -> Result<(Self, mpsc::Receiver<P::Push>), Trouble> {
        let stream = Stream::connect(addr, timeout).await.map_err(|_| Trouble::NoConnection)?;
        let (read, write) = stream.into_split();
        let outgoing = start_writer(write, meter);
        let waiting = Arc::new(Mutex::new(Waiting { next_id: 0, replies: Some(BTreeMap::new()) }));
        let (push, pushes) = mpsc::channel(PUSHES_MAX);
        let reader = task::spawn("model.client.read", read_replies(read, waiting.clone(), push));
        Ok((Connection { outgoing, waiting, reader }, pushes))
    }

    /// Sends a request and waits for the reply, at most `timeout`. Cancel safe: the reply is then discarded.
    pub async fn call(&self, body: P::Request, timeout: Duration) -> Result<P::Reply, Trouble> {
        let (tell, told) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock();
            let id = waiting.next_id;
            waiting.next_id += 1;
            waiting.replies.as_mut().ok_or(Trouble::NoConnection)?.insert(id, tell);
            id
        };
        self.outgoing.try_send(encode(&Asked { id, body })).map_err(|_| Trouble::NoConnection)?;
        match time::timeout(timeout, told).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(time::Elapsed) => Err(Trouble::Unanswered),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.waiting.lock().replies.is_none()
    }
}

/// Client of one server: connects on demand and drops the connection after an error. Never sends a request
/// twice.
pub struct Redial<P: Protocol> {
    pub addr: String,
    timeout: Duration,
    meter: Meter,
    connection: Option<(Connection<P>, mpsc::Receiver<P::Push>)>,
}

impl<P: Protocol> Redial<P> {
    /// Creates a client without a connection.
    pub fn new(addr: impl Into<String>, timeout: Duration, meter: &Meter) -> Self {
        Redial { addr: addr.into(), timeout, meter: meter.clone(), connection: None }
    }

    pub fn is_open(&self) -> bool {
        self.connection.as_ref().is_some_and(|(connection, _)| !connection.is_closed())
    }

    pub fn close(&mut self) {
        self.connection = None;
    }

    /// Sends a request. An [unanswered](Trouble::Unanswered) request may have taken effect.
    pub async fn call(&mut self, request: P::Request) -> Result<P::Reply, Trouble> {
        if !self.is_open() {
            self.connection = Some(Connection::open(&self.addr, self.timeout, &self.meter).await?);
        }
        let Some((connection, _)) = &self.connection else { return Err(Trouble::NoConnection) };
        let reply = connection.call(request, self.timeout).await;
        if reply.is_err() {
            self.close();
        }
        reply
    }

    /// Waits for the next push, or the end of the connection. Cancel safe.
    pub async fn next_push(&mut self) -> Result<P::Push, Trouble> {
        let Some((_, pushes)) = &mut self.connection else { return Err(Trouble::NoConnection) };
        let pushed = pushes.recv().await;
        if pushed.is_none() {
            self.close();
        }
        pushed.ok_or(Trouble::NoConnection)
    }
}

async fn read_replies<P: Protocol>(
    mut read: ReadHalf,
    waiting: Arc<Mutex<Waiting<P>>>,
    push: mpsc::Sender<P::Push>,
) {
    while let Ok(said) = read_frame::<Said<P::Reply, P::Push>>(&mut read).await {
        match said {
            Said::Reply(id, reply) => {
                let waiter = waiting.lock().replies.as_mut().and_then(|replies| replies.remove(&id));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(reply); // the caller may have given up
                }
            }
            Said::Push(pushed) => {
                // A client need not receive pushes; a client that receives too slowly loses the connection.
                if let Err(mpsc::error::TrySendError::Full(_)) = push.try_send(pushed) {
                    break;
                }
            }
        }
    }
    waiting.lock().replies = None;
}

/// Number of a connection at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// Server's side of a connection.
pub struct Peer<P: Protocol> {
    pub id: PeerId,
    outgoing: mpsc::Sender<Vec<u8>>,
    of: std::marker::PhantomData<fn() -> P>,
}

impl<P: Protocol> Clone for Peer<P> {
    fn clone(&self) -> Self {
        Peer { id: self.id, outgoing: self.outgoing.clone(), of: std::marker::PhantomData }
    }
}

impl<P: Protocol> Peer<P> {
    /// Sends an unsolicited message. A message beyond the bound is lost, as with a slow Redis subscriber.
    pub fn push(&self, body: P::Push) {
        let _ = self.outgoing.try_send(encode(&Said::<P::Reply, P::Push>::Push(body)));
    }
}

/// Server that answers requests.
pub trait Service: Send + Sync + 'static {
    type Protocol: Protocol;
    /// Answers one request. The next request of the same connection waits for the end of this future.
    fn handle(
        &self,
        peer: &Peer<Self::Protocol>,
        request: <Self::Protocol as Protocol>::Request,
    ) -> impl Future<Output = <Self::Protocol as Protocol>::Reply> + Send;
    /// Handles the end of a connection.
    fn gone(&self, peer: PeerId);
}

/// Serves on `addr` until the task is dropped. Panics if the address is in use: a bug of the model's setup.
pub async fn serve<S: Service>(addr: String, service: Arc<S>, meter: Meter) {
    let listener = Listener::bind(&addr).await.expect("a model's address is its own");
    for id in (0..).map(PeerId) {
        let stream = listener.accept().await;
        let (service, meter) = (service.clone(), meter.clone());
        // The detached task ends with its connection or its host.
        drop(task::spawn("model.server.conversation", converse(stream, id, service, meter)));
    }
}

async fn converse<S: Service>(stream: Stream, id: PeerId, service: Arc<S>, meter: Meter) {
    let (mut read, write) = stream.into_split();
    let peer = Peer { id, outgoing: start_writer(write, &meter), of: std::marker::PhantomData };
    while let Ok(asked) = read_frame::<Asked<<S::Protocol as Protocol>::Request>>(&mut read).await {
        let reply = service.handle(&peer, asked.body).await;
        let said = Said::<_, <S::Protocol as Protocol>::Push>::Reply(asked.id, reply);
        if peer.outgoing.try_send(encode(&said)).is_err() {
            break;
        }
    }
    service.gone(id);
}

fn start_writer(mut write: WriteHalf, meter: &Meter) -> mpsc::Sender<Vec<u8>> {
    let (outgoing, mut frames) = mpsc::channel::<Vec<u8>>(OUTGOING_MAX);
    let meter = meter.clone();
    // The detached task ends when the last sender is gone or the connection breaks.
    drop(task::spawn("model.write", async move {
        while let Some(frame) = frames.recv().await {
            meter.count();
            if write.write_all(&frame).await.is_err() {
                break;
            }
        }
    }));
    outgoing
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, value).expect("messages of models have no maps with odd keys");
    let len = u32::try_from(frame.len() - 4).expect("messages of models are short");
    frame[..4].copy_from_slice(&len.to_be_bytes());
    frame
}

/// Describes a message for the record: its JSON without punctuation and frame numbers, shortened: `SetNxPx
/// key stock`. A [`Labeler`](rowlock_world::network::Labeler).
pub fn label(_port: u16, _to_server: bool, bytes: &[u8]) -> Option<String> {
    let body = std::str::from_utf8(bytes.get(4..)?).ok()?;
    let text: String = body.chars().filter(|c| !matches!(c, '"' | '{' | '}')).collect();
    let text = match (text.strip_prefix("Reply:["), text.split_once("body:")) {
        (Some(reply), _) => {
            let reply = reply.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',');
            format!("reply {}", reply.trim_end_matches(']'))
        }
        (None, Some((_, request))) => request.strip_prefix("Run:").unwrap_or(request).to_owned(),
        (None, None) => text,
    };
    Some(text.replace(':', " ").chars().take(60).collect())
}

async fn read_frame<T: DeserializeOwned>(read: &mut ReadHalf) -> io::Result<T> {
    let mut len = [0; 4];
    read.read_exact(&mut len).await?;
    let len = u32::from_be_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    read.read_exact(&mut body).await?;
    serde_json::from_slice(&body).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;
    impl Protocol for Echo {
        type Request = String;
        type Reply = String;
        type Push = u32;
    }
    impl Service for Echo {
        type Protocol = Echo;
        async fn handle(&self, peer: &Peer<Echo>, request: String) -> String {
            peer.push(7);
            request.to_uppercase()
        }
        fn gone(&self, _: PeerId) {}
    }

    #[tokio::test]
    async fn replies_and_pushes_arrive_and_every_frame_counts() {
        let meter = Meter::counting();
        let addr = {
            let free = Listener::bind("127.0.0.1:0").await.expect("binds");
            free.local_addr().to_string()
        };
        let server = task::spawn("test", serve(addr.clone(), Arc::new(Echo), meter.clone()));
        let second = Duration::from_secs(1);
        let (connection, mut pushes) = loop {
            match Connection::<Echo>::open(&addr, second, &meter).await {
                Ok(open) => break open,
                Err(_) => time::sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(connection.call("a".to_owned(), second).await, Ok("A".to_owned()));
        assert_eq!(pushes.recv().await, Some(7));
        assert_eq!(meter.total(), 3);
        server.abort();
    }
}
