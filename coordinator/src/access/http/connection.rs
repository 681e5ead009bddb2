//! One HTTP connection: its deadlines, its TLS handshake and its client.
//!
//! A connection with several requests has a deadline for each head, for each response, and for the idle time
//! between requests.
//!
//! TLS for HTTP: handshakes of one listener, with a bounded rate.
//!
//! Must never do: reveal to a client with a failed handshake more than a TLS alert or the need for TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use crate::limits::{HOSTS_COUNTED_MAX, HTTP_TLS_HANDSHAKES_PER_SECOND};
use rowlock_env::net::Stream;
use rowlock_env::rate::{HandshakePace, LogLimiter};
use rowlock_env::time::{self, Instant, Sleep, now, sleep_until};
use rowlock_metrics::Metrics;
use rowlock_tls::{Hello, Keeper, Secured, TlsError, looks_like_tls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::listen::{Bounds, ConnectionSlot, ConnectionState};

#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) address: SocketAddr,
    /// Subject of the client's certificate, set by the handshake.
    subject: Arc<OnceLock<String>>,
    taken: Option<Arc<ConnectionState>>,
}

/// Pending request. Dropping the value marks the request as answered.
pub(super) struct PendingRequest(Option<Arc<ConnectionState>>);

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(taken) = &self.0 {
            taken.end_request();
        }
    }
}

impl Visitor {
    /// Returns a visitor without a connection of this listener.
    pub(super) fn unconnected(address: SocketAddr) -> Self {
        Visitor { address, subject: Arc::default(), taken: None }
    }

    pub(super) fn of(address: SocketAddr, taken: Arc<ConnectionState>) -> Self {
        Visitor { address, subject: Arc::default(), taken: Some(taken) }
    }

    /// Begins a request with the time limit `life`; `None`: the listener's limit.
    pub(super) fn begin_request(&self, life: Option<Duration>) -> PendingRequest {
        if let Some(taken) = &self.taken {
            taken.begin_request(life.unwrap_or(taken.life()));
        }
        PendingRequest(self.taken.clone())
    }

    /// Returns the age of the connection.
    pub(super) fn age(&self) -> Duration {
        self.taken.as_ref().map_or(Duration::ZERO, |taken| taken.since.elapsed())
    }

    /// Returns the subject of the client certificate.
    pub(super) fn subject(&self) -> Option<String> {
        self.subject.get().cloned()
    }

    /// Stores the subject of the client certificate.
    fn set_subject(&self, subject: String) {
        let _: Result<(), String> = self.subject.set(subject);
    }
}

impl fmt::Debug for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address, f)
    }
}

/// Stream with a deadline for its present phase.
pub(super) struct HttpConnection {
    io: Io,
    deadline: Pin<Box<Sleep>>,
    ends: Instant,
    bounds: Bounds,
    /// Start of the request whose head is being read.
    begun: Instant,
    head: Head,
    slot: ConnectionSlot,
}

/// Connection before and after the TLS handshake.
enum Io {
    Handshake(Handshake),
    Open(Stream),
    /// After a failed handshake. HTTP may still flush and read.
    Failed,
}

impl HttpConnection {
    /// Wraps an accepted stream. With `secure`, the connection's task runs the TLS handshake at its first
    /// read and stores the certificate's subject in `visitor`. The deadline for the request head includes the
    /// handshake.
    pub(super) fn new(
        stream: Stream,
        slot: ConnectionSlot,
        bounds: Bounds,
        secure: Option<&SecureHttp>,
        visitor: &Visitor,
    ) -> Self {
        let ends = *slot.taken.ends.lock();
        let deadline = Box::pin(sleep_until(ends));
        let io = match secure {
            Some(secure) => Io::Handshake(secure.handshake(stream, visitor.clone(), now() + bounds.head)),
            None => Io::Open(stream),
        };
        let begun = slot.taken.since;
        HttpConnection { io, deadline, ends, bounds, begun, head: Head::default(), slot }
    }

    /// Completes the handshake and returns the stream.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Stream>> {
        if let Io::Handshake(handshake) = &mut self.io {
            match ready!(handshake.as_mut().poll(cx)) {
                Ok(stream) => self.io = Io::Open(stream),
                Err(error) => {
                    self.io = Io::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.io {
            Io::Open(stream) => Poll::Ready(Ok(stream)),
            Io::Handshake(_) => Poll::Pending,
            Io::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let taken = &self.slot.taken;
        taken.task.register(cx.waker());
        if taken.is_evicted.load(Relaxed) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "closed in favor of a new connection",
            ));
        }
        let ends = *taken.ends.lock();
        if self.ends != ends {
            self.ends = ends;
            self.deadline = Box::pin(sleep_until(ends));
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's deadline has passed"))
            }
            Poll::Pending => Ok(()),
        }
    }

    /// Detects the end of the request head; from then on the deadline of the response applies.
    fn track_head(&mut self, bytes: &[u8]) {
        let taken = &self.slot.taken;
        if bytes.is_empty() || taken.has_request.load(Relaxed) {
            return;
        }
        if taken.is_idle.swap(false, Relaxed) {
            (self.begun, self.head) = (now(), Head::default());
            *taken.ends.lock() = self.begun + self.bounds.head;
        }
        if self.head.ends_in(bytes) {
            taken.has_request.store(true, Relaxed);
            *taken.ends.lock() = self.begun + self.bounds.life;
        }
    }
}

/// Finds the empty line after a request head across reads of any size.
#[derive(Debug, Default)]
struct Head {
    /// A line precedes, and only carriage returns follow its line feed.
    at_line_start: bool,
    has_line: bool,
}

impl Head {
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                b'\n' if self.at_line_start => return true,
                b'\n' => self.at_line_start = self.has_line,
                b'\r' => {}
                _ => (self.at_line_start, self.has_line) = (false, true),
            }
        }
        false
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        let stream = ready!(self.poll_open(cx))?;
        let read = Pin::new(stream).poll_read(cx, buf);
        if read.is_ready() {
            self.track_head(&buf.filled()[before..]);
            // Registers the task for the new deadline.
            self.check(cx)?;
        }
        read
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            // There is no open TLS stream to close.
            Io::Handshake(_) | Io::Failed => Poll::Ready(Ok(())),
        }
    }
}

/// Response to a request without TLS.
const WITHOUT_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                             this port is for https\n";

type Handshake = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// State shared by all connections of the listener.
pub(super) struct SecureHttp {
    keeper: Arc<Keeper>,
    shared: Arc<HandshakeContext>,
}

struct HandshakeContext {
    pace: HandshakePace,
    refusals_log: LogLimiter,
    metrics: Arc<Metrics>,
}

impl SecureHttp {
    pub(super) fn new(keeper: Arc<Keeper>, metrics: Arc<Metrics>) -> Self {
        let pace = HandshakePace::new(HTTP_TLS_HANDSHAKES_PER_SECOND, HOSTS_COUNTED_MAX);
        SecureHttp {
            keeper,
            shared: Arc::new(HandshakeContext { pace, refusals_log: LogLimiter::default(), metrics }),
        }
    }

    /// Runs the handshake and stores the certificate's subject in `visitor`. After `deadline` a handshake
    /// fails without starting.
    pub(super) fn handshake(&self, stream: Stream, visitor: Visitor, deadline: Instant) -> Handshake {
        let (keeper, shared) = (self.keeper.clone(), self.shared.clone());
        Box::pin(async move {
            match shared.accept(&keeper, stream, &visitor, deadline).await {
                Ok(Secured { stream, certificate, .. }) => {
                    if let Some(certificate) = certificate {
                        visitor.set_subject(certificate.subject);
                    }
                    Ok(stream)
                }
                Err(error) => {
                    shared.failed(&visitor, &error);
                    Err(io::Error::new(io::ErrorKind::ConnectionAborted, error))
                }
            }
        })
    }
}

impl HandshakeContext {
    async fn accept(
        &self,
        keeper: &Keeper,
        stream: Stream,
        visitor: &Visitor,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        match stream.first_byte().await {
            Ok(Some(first)) if looks_like_tls(first) => {}
            Ok(Some(_)) => {
                // Reads the rest of the request: with unread bytes, closing the connection would discard the
                // response.
                let _ = stream.try_read(&mut [0; 1_024]);
                let _ = stream.try_write(WITHOUT_TLS);
                return Err(TlsError::Handshake("it does not speak TLS".to_owned()));
            }
            Ok(None) | Err(_) => return Err(TlsError::HungUp),
        }
        // A handshake takes its turn only after the complete hello, so clients with silent or partial hellos
        // take no turns.
        let hello = Hello::read(stream).await?;
        let now = time::now();
        let wait = self.pace.reserve(visitor.address.ip(), now, deadline.saturating_since(now));
        let wait = wait.ok_or_else(|| TlsError::Handshake("too many TLS handshakes at a time".to_owned()))?;
        time::sleep(wait).await;
        keeper.material().http.answer(hello).await
    }

    fn failed(&self, visitor: &Visitor, error: &TlsError) {
        if matches!(error, TlsError::HungUp) {
            return;
        }
        self.metrics.http_tls_handshakes_failed_total.inc();
        if let Some(suppressed) = self.refusals_log.admit() {
            tracing::info!(address = %visitor.address, %error, suppressed, "TLS handshake with an HTTP client failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_ends_at_its_empty_line_for_reads_of_any_size() {
        for whole in
            ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.0\n\n", "\r\n\r\nGET / HTTP/1.0\r\n\r\n"]
        {
            for piece in 1..=whole.len() {
                let mut head = Head::default();
                let ends: Vec<bool> =
                    whole.as_bytes().chunks(piece).map(|bytes| head.ends_in(bytes)).collect();
                let (last, others) = ends.split_last().unwrap();
                assert!(*last && !others.contains(&true), "{whole:?} in pieces of {piece}: {ends:?}");
            }
        }
    }
}
