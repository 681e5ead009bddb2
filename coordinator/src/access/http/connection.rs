//! One HTTP connection: its deadlines, its TLS handshake, and who has come by it.
//!
//! One that carries several requests has a deadline for each head, for each answer, and for the time between.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rowlock_env::net::Stream;
use rowlock_env::time::{Instant, Sleep, now, sleep_until};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::listen::{Bounds, ConnectionSlot, Taken};
use super::secure::{SecureHttp, Shaking};

#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) address: SocketAddr,
    /// Subject of its certificate; known after the handshake.
    subject: Arc<OnceLock<String>>,
    taken: Option<Arc<Taken>>,
}

/// A request under way. When this is dropped, it is answered.
pub(super) struct Turn(Option<Arc<Taken>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(taken) = &self.0 {
            taken.answered();
        }
    }
}

impl Visitor {
    /// Of a request that came by no connection of this listener.
    pub(super) fn nobody(address: SocketAddr) -> Self {
        Visitor { address, subject: Arc::default(), taken: None }
    }

    pub(super) fn of(address: SocketAddr, taken: Arc<Taken>) -> Self {
        Visitor { address, subject: Arc::default(), taken: Some(taken) }
    }

    /// A request of it begins. `life`: how long it may take, if that is not what the listener allows.
    pub(super) fn begins(&self, life: Option<Duration>) -> Turn {
        if let Some(taken) = &self.taken {
            taken.begins(life.unwrap_or(taken.life()));
        }
        Turn(self.taken.clone())
    }

    /// For how long its connection has been open.
    pub(super) fn age(&self) -> Duration {
        self.taken.as_ref().map_or(Duration::ZERO, |taken| taken.since.elapsed())
    }

    /// The subject of its certificate, if it has shown one.
    pub(super) fn subject(&self) -> Option<String> {
        self.subject.get().cloned()
    }

    /// It has shown the certificate of this subject.
    pub(super) fn is_named(&self, subject: String) {
        let _: Result<(), String> = self.subject.set(subject);
    }
}

impl fmt::Debug for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address, f)
    }
}

/// A stream with a deadline for whatever comes next.
pub(super) struct HttpConnection {
    io: Io,
    deadline: Pin<Box<Sleep>>,
    ends: Instant,
    bounds: Bounds,
    /// When the request began whose head is read.
    begun: Instant,
    head: Head,
    place: ConnectionSlot,
}

/// A connection before its TLS handshake, and after it (or without any).
enum Io {
    Shaking(Shaking),
    Open(Stream),
    /// The handshake failed. HTTP may still flush and read.
    Failed,
}

impl HttpConnection {
    /// `secure`: by TLS. Then the handshake is done by the task of the connection when it first reads, and
    /// `visitor` is told of the certificate. The deadline for the head of the request counts for both.
    pub(super) fn new(
        stream: Stream,
        place: ConnectionSlot,
        bounds: Bounds,
        secure: Option<&SecureHttp>,
        visitor: &Visitor,
    ) -> Self {
        let ends = *place.taken.ends.lock();
        let deadline = Box::pin(sleep_until(ends));
        let io = match secure {
            Some(secure) => Io::Shaking(secure.shake_hands(stream, visitor.clone(), now() + bounds.head)),
            None => Io::Open(stream),
        };
        let begun = place.taken.since;
        HttpConnection { io, deadline, ends, bounds, begun, head: Head::default(), place }
    }

    /// The stream, once its handshake is done.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Stream>> {
        if let Io::Shaking(shaking) = &mut self.io {
            match ready!(shaking.as_mut().poll(cx)) {
                Ok(stream) => self.io = Io::Open(stream),
                Err(error) => {
                    self.io = Io::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.io {
            Io::Open(stream) => Poll::Ready(Ok(stream)),
            Io::Shaking(_) => Poll::Pending,
            Io::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
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
        let ends = *taken.ends.lock();
        if self.ends != ends {
            self.ends = ends;
            self.deadline = Box::pin(sleep_until(ends));
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the connection's time is over")),
            Poll::Pending => Ok(()),
        }
    }

    /// Looks whether the head is whole with these bytes: then the deadline is that of the answer.
    fn heard(&mut self, bytes: &[u8]) {
        let taken = &self.place.taken;
        if bytes.is_empty() || taken.asked.load(Relaxed) {
            return;
        }
        if taken.rests.swap(false, Relaxed) {
            (self.begun, self.head) = (now(), Head::default());
            *taken.ends.lock() = self.begun + self.bounds.head;
        }
        if self.head.ends_in(bytes) {
            taken.asked.store(true, Relaxed);
            *taken.ends.lock() = self.begun + self.bounds.life;
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
            self.heard(&buf.filled()[before..]);
            // A new deadline has to know its task.
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
            // Nothing was said that could be ended.
            Io::Shaking(_) | Io::Failed => Poll::Ready(Ok(())),
        }
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
}
