//! Accepts HTTP connections, a bounded number of them, each for a bounded time. Where all places are taken,
//! the oldest connection whose request is not here yet gives way: a probe sends its request at once, so it is
//! always answered.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::time::{Instant, Sleep, now, sleep, sleep_until};
use rowlock_types::limits::{
    HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX, HTTP_CONNECTIONS_OF_ADDRESS_MAX, HTTP_HEAD_MAX,
    HTTP_YIELD_AFTER,
};
use rowlock_types::metrics::Metrics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How long to leave the listener alone after a failed accept (usually: out of file descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a [`BoundedListener`] allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Those of one address but loopback.
    pub of_address: usize,
    /// From the accept to the end of the request's head.
    pub head: Duration,
    /// From the accept to the end.
    pub life: Duration,
}

impl Default for Bounds {
    /// Those of `limits.rs`.
    fn default() -> Self {
        Bounds {
            connections: HTTP_CONNECTIONS_MAX,
            of_address: HTTP_CONNECTIONS_OF_ADDRESS_MAX,
            head: HTTP_HEAD_MAX,
            life: HTTP_CONNECTION_MAX,
        }
    }
}

/// A listener that never has more than its number of connections open.
pub(super) struct BoundedListener {
    inner: Listener,
    bounds: Bounds,
    places: Arc<Mutex<Places>>,
    metrics: Arc<Metrics>,
}

impl BoundedListener {
    pub(super) fn new(inner: Listener, metrics: Arc<Metrics>, bounds: Bounds) -> Self {
        BoundedListener { inner, bounds, places: Arc::default(), metrics }
    }

    /// Waits for a place, at most `HTTP_YIELD_AFTER`, and takes it. None: this address has as many as it may
    /// have.
    async fn place(&self, addr: IpAddr) -> Option<Place> {
        loop {
            let wait_until = {
                let mut places = self.places.lock();
                if places.of_address(addr) >= self.bounds.of_address && !addr.is_loopback() {
                    return None;
                }
                match places.make_room(self.bounds.connections, now()) {
                    Ok(()) => return Some(places.take(&self.places, addr, now())),
                    Err(wait_until) => wait_until,
                }
            };
            sleep_until(wait_until).await;
        }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.inner.accept().await {
                Ok((stream, addr)) => match self.place(addr.ip().to_canonical()).await {
                    Some(place) => {
                        self.metrics.http_connections_total.inc();
                        return (Connection::new(stream, place, self.bounds), addr);
                    }
                    None => self.metrics.http_connections_refused_total.inc(),
                },
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be accepted");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.local_addr())
    }
}

/// The open connections, in the order in which they came.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Arc<Taken>>,
}

#[derive(Debug)]
struct Taken {
    addr: IpAddr,
    since: Instant,
    /// The head of its request is here.
    asked: AtomicBool,
    /// It has to end.
    gives_way: AtomicBool,
    task: AtomicWaker,
}

impl Places {
    fn of_address(&self, addr: IpAddr) -> usize {
        self.taken.values().filter(|taken| taken.addr == addr).count()
    }

    /// Makes one connection end if all places are taken. Err: each is too young for it; when to look again.
    fn make_room(&mut self, most: usize, now: Instant) -> Result<(), Instant> {
        if self.taken.len() < most {
            return Ok(());
        }
        let idle = self.taken.iter().find(|(_, taken)| !taken.asked.load(Relaxed));
        let (id, taken) = idle.or_else(|| self.taken.iter().next()).expect("there is at least one place");
        let ripe = taken.since + HTTP_YIELD_AFTER;
        if now < ripe {
            return Err(ripe);
        }
        taken.gives_way.store(true, Relaxed);
        taken.task.wake();
        let id = *id;
        self.taken.remove(&id);
        Ok(())
    }

    fn take(&mut self, all: &Arc<Mutex<Places>>, addr: IpAddr, since: Instant) -> Place {
        let taken = Taken {
            addr,
            since,
            asked: AtomicBool::new(false),
            gives_way: AtomicBool::new(false),
            task: AtomicWaker::new(),
        };
        let (id, taken) = (self.next, Arc::new(taken));
        self.next += 1;
        self.taken.insert(id, taken.clone());
        Place { id, taken, all: all.clone() }
    }
}

/// The place of an open connection.
struct Place {
    id: u64,
    taken: Arc<Taken>,
    all: Arc<Mutex<Places>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().taken.remove(&self.id);
    }
}

/// A stream with a deadline for the head of its request, and one for all of its life.
pub(super) struct Connection {
    stream: Stream,
    deadline: Pin<Box<Sleep>>,
    life: Duration,
    head: Head,
    place: Place,
}

impl Connection {
    fn new(stream: Stream, place: Place, bounds: Bounds) -> Self {
        let deadline = Box::pin(sleep(bounds.head.min(bounds.life)));
        Connection { stream, deadline, life: bounds.life, head: Head::default(), place }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let taken = &self.place.taken;
        taken.task.register(cx.waker());
        if taken.gives_way.load(Relaxed) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection gives way to others",
            ));
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's time is over")),
            Poll::Pending => Ok(()),
        }
    }

    /// Looks whether the head is whole with these bytes: then the deadline is that of the connection's life.
    fn heard(&mut self, bytes: &[u8]) {
        let taken = &self.place.taken;
        if !taken.asked.load(Relaxed) && self.head.ends_in(bytes) {
            taken.asked.store(true, Relaxed);
            self.deadline = Box::pin(sleep_until(taken.since + self.life));
        }
    }
}

/// Finds the empty line behind the head of a request, in whatever pieces it comes.
#[derive(Debug, Default)]
struct Head {
    /// The bytes since the last line feed are carriage returns at most, and there was a line.
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

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.heard(&buf.filled()[before..]);
            // A new deadline has to know its task.
            self.check(cx)?;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_empty_line_in_whatever_pieces_it_comes() {
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

    #[test]
    fn the_oldest_without_a_request_gives_way_and_none_that_has_just_come() {
        let all = Arc::new(Mutex::new(Places::default()));
        let (begin, addr) = (now(), IpAddr::from([10, 0, 0, 1]));
        let take = |since| all.lock().take(&all, addr, since);
        let (asked, idle, later) =
            (take(begin), take(begin + HTTP_YIELD_AFTER), take(begin + HTTP_YIELD_AFTER));
        asked.taken.asked.store(true, Relaxed);
        let ripe = begin + HTTP_YIELD_AFTER + HTTP_YIELD_AFTER;
        assert_eq!(all.lock().make_room(4, begin), Ok(()));
        assert_eq!(all.lock().make_room(3, begin + HTTP_YIELD_AFTER), Err(ripe));
        assert_eq!(all.lock().make_room(3, ripe), Ok(()));
        let gives_way = |place: &Place| place.taken.gives_way.load(Relaxed);
        assert_eq!([&asked, &idle, &later].map(gives_way), [false, true, false]);
        assert_eq!(all.lock().of_address(addr), 2);
        drop((asked, idle, later));
        assert_eq!(all.lock().of_address(addr), 0);
    }

    #[tokio::test]
    async fn connections_of_one_address_are_bounded_and_those_of_loopback_are_not() {
        let inner = Listener::bind("127.0.0.1:0").await.unwrap();
        let bounds = Bounds { connections: 64, of_address: 2, ..Bounds::default() };
        let listener = BoundedListener::new(inner, Arc::default(), bounds);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (first, second) = (listener.place(one).await, listener.place(one).await);
        assert!(first.is_some() && second.is_some());
        assert!(listener.place(one).await.is_none());
        assert!(listener.place(other).await.is_some());
        let mut own = Vec::new();
        for _ in 0..10 {
            own.push(listener.place(IpAddr::from([127, 0, 0, 1])).await.expect("loopback is free"));
        }
        drop(first);
        assert!(listener.place(one).await.is_some());
    }
}
