//! Streams between hosts: connect, listen, accept. TCP without delay (Nagle's algorithm off).

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::backoff::Backoff;
use crate::busy::{self, Work};
use crate::time::{self, Instant};
use crate::world::{self, Conduit, Port};
use crate::{resolve, rng};

/// Pauses of a listener between failed accepts.
const ACCEPT_PAUSES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_millis(250);

#[derive(Debug)]
pub struct Stream {
    inner: StreamIn,
    peer: SocketAddr,
}

#[derive(Debug)]
enum StreamIn {
    Reality(TcpStream),
    /// A simulated or encrypted connection.
    World(Reading, Writing),
}

#[derive(Debug)]
pub struct ReadHalf {
    inner: ReadHalfIn,
}

#[derive(Debug)]
enum ReadHalfIn {
    Reality(OwnedReadHalf),
    World(Reading),
}

/// The writing side of a [`Stream`]; a drop closes this direction.
#[derive(Debug)]
pub struct WriteHalf {
    inner: WriteHalfIn,
}

#[derive(Debug)]
enum WriteHalfIn {
    Reality(OwnedWriteHalf),
    World(Writing),
}

/// Reading side of a simulated or encrypted connection.
#[derive(Debug)]
struct Reading(Arc<dyn Conduit>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.close_read();
    }
}

/// Writing side of a simulated or encrypted connection.
#[derive(Debug)]
struct Writing(Arc<dyn Conduit>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.close_write();
    }
}

impl Stream {
    /// Connects to `host:port` within `timeout` in total: resolves the name each time, and tries each
    /// address, in random order.
    pub async fn connect(addr: &str, timeout: Duration) -> io::Result<Stream> {
        if let Some(world) = world::current() {
            return Ok(Stream::over(world.connect(addr, timeout).await?));
        }
        let late =
            |what: &str| io::Error::new(io::ErrorKind::TimedOut, format!("{what} {addr} within {timeout:?}"));
        let deadline = time::now() + timeout;
        let resolved = time::timeout_at(deadline, resolve::resolve(addr)).await;
        let mut all = resolved.map_err(|time::Elapsed| late("no address of"))??;
        rng::shuffle(&mut all);
        let inner = connect_any(&all, deadline).await;
        let inner = inner.map_err(|error| error.unwrap_or_else(|| late("no connection to")))?;
        Stream::wrap(inner)
    }

    fn wrap(inner: TcpStream) -> io::Result<Stream> {
        inner.set_nodelay(true)?;
        let peer = inner.peer_addr()?;
        Ok(Stream { inner: StreamIn::Reality(inner), peer })
    }

    fn over(conduit: Arc<dyn Conduit>) -> Stream {
        let peer = conduit.peer_addr();
        Stream { inner: StreamIn::World(Reading(conduit.clone()), Writing(conduit)), peer }
    }

    /// Makes a stream over `conduit`, such as an encrypted connection.
    pub fn through(conduit: Arc<dyn Conduit>) -> Stream {
        Stream::over(conduit)
    }

    /// Waits for the peer's first byte and leaves it unread; returns `None` at the end of the stream. Cancel
    /// safe.
    pub async fn first_byte(&self) -> io::Result<Option<u8>> {
        match &self.inner {
            StreamIn::Reality(stream) => {
                let mut first = [0];
                Ok((stream.peek(&mut first).await? == 1).then_some(first[0]))
            }
            StreamIn::World(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Splits the stream for a reading and a writing task.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (r, w) = match self.inner {
            StreamIn::Reality(stream) => {
                let (r, w) = stream.into_split();
                (ReadHalfIn::Reality(r), WriteHalfIn::Reality(w))
            }
            StreamIn::World(r, w) => (ReadHalfIn::World(r), WriteHalfIn::World(w)),
        };
        (ReadHalf { inner: r }, WriteHalf { inner: w })
    }

    /// Reads the available bytes; fails with `WouldBlock` if none are available.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let read = match &self.inner {
            StreamIn::Reality(stream) => stream.try_read(buf),
            StreamIn::World(reading, _) => reading.0.try_read(buf),
        };
        moved(Work::ReceivedByte, &read);
        read
    }

    /// Writes as much as fits; fails with `WouldBlock` if nothing fits.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        let written = match &self.inner {
            StreamIn::Reality(stream) => stream.try_write(buf),
            StreamIn::World(_, writing) => writing.0.try_write(buf),
        };
        moved(Work::SentByte, &written);
        written
    }
}

impl ReadHalf {
    /// Reads the available bytes; fails with `WouldBlock` if none are available.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let read = match &self.inner {
            ReadHalfIn::Reality(half) => half.try_read(buf),
            ReadHalfIn::World(reading) => reading.0.try_read(buf),
        };
        moved(Work::ReceivedByte, &read);
        read
    }
}

impl WriteHalf {
    /// Writes as much as fits; fails with `WouldBlock` if nothing fits.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        let written = match &self.inner {
            WriteHalfIn::Reality(half) => half.try_write(buf),
            WriteHalfIn::World(writing) => writing.0.try_write(buf),
        };
        moved(Work::SentByte, &written);
        written
    }
}

/// Accounts for a call with transferred bytes.
#[inline]
fn moved(kind: Work, result: &io::Result<usize>) {
    if let Ok(bytes) = result {
        busy::spend(Work::SocketCall, 1);
        busy::spend(kind, *bytes as u64);
    }
}

#[inline]
fn polled(kind: Work, result: &Poll<io::Result<usize>>) {
    if let Poll::Ready(result) = result {
        moved(kind, result);
    }
}

impl Reading {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The buffer is zeroed before its use: this bounds the cost of a large buffer for a few bytes.
        let room = buf.remaining().min(4_096);
        let read = self.0.poll_read(cx, buf.initialize_unfilled_to(room));
        read.map_ok(|bytes| buf.advance(bytes))
    }
}

impl Writing {
    /// Writes only the first non-empty buffer: a simulated network needs no more at once.
    fn poll_write_vectored(&self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| &**buf);
        self.0.poll_write(cx, first)
    }
}

/// Returns all present addresses of `host:port`, for diagnostics.
///
/// # Errors
/// The name has no address, or the look-up fails.
/// # Cancel safety
/// Cancel safe.
pub async fn addresses(addr: &str) -> io::Result<Vec<SocketAddr>> {
    resolve::resolve(addr).await
}

/// Connects to the first accepting address. Each address has an equal share of the remaining time. Fails with
/// `None` if the last address timed out.
async fn connect_any(all: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Option<io::Error>> {
    let mut failed = Some(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for (tried, address) in all.iter().enumerate() {
        let left = deadline.saturating_since(time::now());
        let share = left / u32::try_from(all.len() - tried).unwrap_or(u32::MAX);
        match time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = Some(error),
            Err(time::Elapsed) => failed = None,
        }
    }
    Err(failed)
}

macro_rules! delegate_read {
    ($t:ty, $reality:path, $world:pat => $reading:expr) => {
        impl AsyncRead for $t {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let before = buf.filled().len();
                let read = match &mut self.inner {
                    $reality(inner) => Pin::new(inner).poll_read(cx, buf),
                    $world => $reading.poll_read(cx, buf),
                };
                if read.is_ready() {
                    moved(Work::ReceivedByte, &Ok(buf.filled().len() - before));
                }
                read
            }
        }
    };
}

macro_rules! delegate_write {
    ($t:ty, $reality:path, $world:pat => $writing:expr) => {
        impl AsyncWrite for $t {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                let written = match &mut self.inner {
                    $reality(inner) => Pin::new(inner).poll_write(cx, buf),
                    $world => $writing.0.poll_write(cx, buf),
                };
                polled(Work::SentByte, &written);
                written
            }
            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let written = match &mut self.inner {
                    $reality(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
                    $world => $writing.poll_write_vectored(cx, bufs),
                };
                polled(Work::SentByte, &written);
                written
            }
            fn is_write_vectored(&self) -> bool {
                match &self.inner {
                    $reality(inner) => inner.is_write_vectored(),
                    _ => false,
                }
            }
            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut self.inner {
                    $reality(inner) => Pin::new(inner).poll_flush(cx),
                    _ => Poll::Ready(Ok(())),
                }
            }
            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut self.inner {
                    $reality(inner) => Pin::new(inner).poll_shutdown(cx),
                    $world => {
                        $writing.0.close_write();
                        Poll::Ready(Ok(()))
                    }
                }
            }
        }
    };
}

delegate_read!(Stream, StreamIn::Reality, StreamIn::World(reading, _) => reading);
delegate_write!(Stream, StreamIn::Reality, StreamIn::World(_, writing) => writing);
delegate_read!(ReadHalf, ReadHalfIn::Reality, ReadHalfIn::World(reading) => reading);
delegate_write!(WriteHalf, WriteHalfIn::Reality, WriteHalfIn::World(writing) => writing);

/// Length of the accept queue, if the system allows it (Linux: `net.core.somaxconn`, 4,096 by default). With
/// a full queue the system drops a client's first packet, and the client retries a second later: all clients
/// of a failed node reconnect at once. (The standard library requests 128.)
const LISTEN_BACKLOG: u32 = 4_096;

/// System calls of an accepted connection, including its registration and close.
const ACCEPT_CALLS: u64 = 5;

#[derive(Debug)]
pub struct Listener {
    inner: ListenerIn,
    local: SocketAddr,
}

#[derive(Debug)]
enum ListenerIn {
    Reality(TcpListener),
    World(Arc<dyn Port>),
}

impl Listener {
    /// Listens on `host:port`; port 0 selects a free port. Reuses a port lingering from a former process.
    pub async fn bind(addr: &str) -> io::Result<Listener> {
        if let Some(world) = world::current() {
            let port = world.listen(addr)?;
            let local = port.local_addr();
            return Ok(Listener { inner: ListenerIn::World(port), local });
        }
        let inner = listen(addr).await?;
        let local = inner.local_addr()?;
        Ok(Listener { inner: ListenerIn::Reality(inner), local })
    }

    /// Waits for the next connection. Logs a failure (usually a lack of file descriptors) and retries after a
    /// pause. Cancel safe.
    pub async fn accept(&self) -> Stream {
        let mut backoff = Backoff::default();
        loop {
            match self.try_accept().await {
                Ok(stream) => {
                    busy::spend(Work::SocketCall, ACCEPT_CALLS);
                    return stream;
                }
                Err(error) => {
                    let pause = backoff.failed(time::now(), &ACCEPT_PAUSES);
                    if backoff.failures() == 1 {
                        let address = self.local;
                        tracing::warn!(%address, %error, "cannot accept connections; raise the limit of open files if it is reached");
                    }
                    time::sleep(pause).await;
                }
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Stream> {
        match &self.inner {
            ListenerIn::Reality(listener) => Stream::wrap(listener.accept().await?.0),
            ListenerIn::World(port) => {
                Ok(Stream::over(std::future::poll_fn(|cx| port.poll_accept(cx)).await?))
            }
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Listens on the first usable address of the name.
async fn listen(addr: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for addr in tokio::net::lookup_host(addr).await? {
        match listen_at(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen_at(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(LISTEN_BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn hundreds_may_come_before_the_first_is_accepted() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
        let allowed: usize = allowed.and_then(|text| text.trim().parse().ok()).unwrap_or(128);
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().to_string();
        let mut all = Vec::new();
        for _ in 0..allowed.min(300) {
            // A client with a dropped first packet connects later, or never without an accept.
            all.push(Stream::connect(&addr, Duration::from_secs(20)).await.expect("connects"));
        }
        listener.accept().await;
    }

    #[tokio::test]
    async fn bytes_cross_a_connection_in_both_directions() {
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().to_string();
        let mut a = Stream::connect(&addr, Duration::from_secs(5)).await.expect("connects");
        let b = listener.accept().await;
        let (mut br, mut bw) = b.into_split();
        a.write_all(b"ping").await.expect("writes");
        let mut buf = [0; 4];
        br.read_exact(&mut buf).await.expect("reads");
        bw.write_all(&buf).await.expect("writes");
        a.read_exact(&mut buf).await.expect("reads");
        assert_eq!(&buf, b"ping");
    }

    #[tokio::test]
    async fn a_silent_address_leaves_time_for_the_names_other_addresses() {
        // A full accept queue leaves a connection attempt unanswered.
        let full = TcpSocket::new_v4().expect("a socket");
        full.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let full = full.listen(1).expect("listens");
        let silent = full.local_addr().expect("an address");
        let mut fill = Vec::new();
        while let Ok(Ok(stream)) = time::timeout(Duration::from_millis(200), TcpStream::connect(silent)).await
        {
            fill.push(stream);
            assert!(fill.len() < 100, "it has no end");
        }
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let deadline = || time::now() + Duration::from_secs(2);
        let found = connect_any(&[silent, listener.local_addr()], deadline()).await;
        assert_eq!(found.expect("the second").peer_addr().ok(), Some(listener.local_addr()));
        let none = connect_any(&[silent], time::now() + Duration::from_millis(50)).await;
        assert!(matches!(none, Err(None)));
        assert!(matches!(connect_any(&[], deadline()).await, Err(Some(_))));
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_error_at_once() {
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().to_string();
        drop(listener);
        let refused = Stream::connect(&addr, Duration::from_secs(5)).await.expect_err("no listener");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
