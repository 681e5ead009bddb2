//! One encrypted connection: a plain stream below, plain bytes above, a rustls connection between.
//!
//! The halves of a stream share it under a lock that is never held for long: reading reads from the socket
//! only, writing writes to it only, but for what rustls owes in between (an alert, a new key).
//!
//! A write counts as done when its ciphertext is with the system, since those above never flush. Until then
//! it is `Pending`, or `WouldBlock`, although rustls has the bytes: a caller that tries again must begin
//! with the same bytes, as all do who keep what was not written.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rowlock_env::net::Stream;
use rowlock_env::world::Conduit;
use rustls::pki_types::CertificateDer;
use rustls::{Connection, ServerConfig, server};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::frames::Frames;
use crate::words;

pub(crate) struct TlsConduit {
    peer: SocketAddr,
    /// Of the other side's certificate; the greatest number: it has none.
    expires_ms: i64,
    both: Mutex<Both>,
}

/// A rustls connection and what is below it.
pub(crate) struct Both {
    io: Stream,
    tls: Connection,
    /// Bytes that rustls has taken and of which the writer does not know yet.
    taken: usize,
    /// For a server: each frame is a record of its own.
    frames: Option<Frames>,
    /// Who waits for bytes.
    reader: Option<Waker>,
    /// The certificate of the other side does not count any more.
    is_over: bool,
}

/// How long the socket may be waited for.
enum How<'a, 'b> {
    Wait(&'a mut Context<'b>),
    Try,
}

/// The socket as rustls reads and writes it.
struct Socket<'a, 'b, 'c> {
    io: &'a mut Stream,
    how: &'a mut How<'b, 'c>,
}

impl io::Read for Socket<'_, '_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.how {
            How::Try => self.io.try_read(buf),
            How::Wait(cx) => {
                let mut buf = ReadBuf::new(buf);
                match Pin::new(&mut *self.io).poll_read(cx, &mut buf) {
                    Poll::Ready(read) => read.map(|()| buf.filled().len()),
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }
}

impl io::Write for Socket<'_, '_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.how {
            How::Try => self.io.try_write(buf),
            How::Wait(cx) => match Pin::new(&mut *self.io).poll_write(cx, buf) {
                Poll::Ready(written) => written,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the hello of a client, whole. Cancel safe.
pub(crate) fn poll_hello(
    io: &mut Stream,
    hello: &mut server::Acceptor,
    cx: &mut Context<'_>,
) -> Poll<io::Result<server::Accepted>> {
    loop {
        match hello.accept() {
            Ok(Some(accepted)) => return Poll::Ready(Ok(accepted)),
            Ok(None) => {}
            Err((error, mut alert)) => {
                // Its connection is closed anyway.
                let _ = alert.write_all(&mut Socket { io, how: &mut How::Try });
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
        match hello.read_tls(&mut Socket { io, how: &mut How::Wait(cx) }) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return pending(error),
        }
    }
}

/// Has the server's side of the handshake begin. Whom it refuses is told why by an alert.
pub(crate) fn answer_hello(
    io: &mut Stream,
    hello: server::Accepted,
    config: Arc<ServerConfig>,
) -> Result<Connection, rustls::Error> {
    match hello.into_connection(config) {
        Ok(tls) => Ok(tls.into()),
        Err((error, mut alert)) => {
            let _ = alert.write_all(&mut Socket { io, how: &mut How::Try });
            Err(error)
        }
    }
}

impl Both {
    pub(crate) fn new(io: Stream, tls: Connection, frames: Option<Frames>) -> Self {
        Both { io, tls, taken: 0, frames, reader: None, is_over: false }
    }

    fn check(&self) -> io::Result<()> {
        if self.is_over {
            let why = "the certificate of the other side does not count any more";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        Ok(())
    }

    pub(crate) fn tls(&self) -> &Connection {
        &self.tls
    }

    /// The handshake, and what it owes at its end. Cancel safe.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut how = How::Wait(cx);
        let done = loop {
            if let Err(error) = self.flush(&mut how) {
                break Err(error);
            }
            if !self.tls.is_handshaking() {
                break Ok(());
            }
            match self.fill(&mut how) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        done.map_or_else(pending, |()| Poll::Ready(Ok(())))
    }

    /// Writes all that rustls has to send.
    fn flush(&mut self, how: &mut How<'_, '_>) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut Socket { io: &mut self.io, how })? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Reads once from the socket; 0 at its end.
    fn fill(&mut self, how: &mut How<'_, '_>) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut Socket { io: &mut self.io, how })?;
        if let Err(error) = self.tls.process_new_packets() {
            // The alert says why; it is not waited for.
            let _ = self.flush(&mut How::Try);
            return Err(words::broken(&error));
        }
        Ok(count)
    }

    fn read(&mut self, how: &mut How<'_, '_>, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Many clients hang up without saying so in TLS. Frames have lengths: a cut is noticed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.fill(how)?;
            if self.tls.wants_write() && self.taken == 0 {
                // The next write sends the rest.
                let _ = self.flush(&mut How::Try);
            }
        }
    }

    /// Hands bytes to rustls, of which each write is at least one record; gives how many it has taken.
    fn encrypt(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Some(frames) = &mut self.frames else { return self.tls.writer().write(buf) };
        let mut taken = 0;
        while taken < buf.len() {
            let rest = &buf[taken..];
            let piece = frames.piece(rest);
            let count = self.tls.writer().write(&rest[..piece])?;
            frames.advance(&rest[..count]);
            taken += count;
            if count < piece {
                break;
            }
        }
        Ok(taken)
    }

    fn write(&mut self, how: &mut How<'_, '_>, buf: &[u8]) -> io::Result<usize> {
        if self.taken == 0 {
            self.flush(how)?;
            self.taken = self.encrypt(buf)?;
        }
        self.flush(how)?;
        let taken = std::mem::take(&mut self.taken);
        assert!(taken <= buf.len(), "Invariant: a write that is tried again begins with the same bytes");
        Ok(taken)
    }
}

fn pending<T>(error: io::Error) -> Poll<io::Result<T>> {
    if error.kind() == io::ErrorKind::WouldBlock { Poll::Pending } else { Poll::Ready(Err(error)) }
}

impl TlsConduit {
    /// `expires_ms`: of the other side's certificate.
    pub(crate) fn new(both: Both, expires_ms: Option<i64>) -> Self {
        let expires_ms = expires_ms.unwrap_or(i64::MAX);
        TlsConduit { peer: both.io.peer_addr(), expires_ms, both: Mutex::new(both) }
    }

    pub(crate) fn expires_ms(&self) -> i64 {
        self.expires_ms
    }

    /// What the other side has shown.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let both = self.both.lock();
        both.tls.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
    }

    /// Ends it: reading and writing fail from now on. False: it was over already.
    pub(crate) fn end(&self) -> bool {
        let reader = {
            let mut both = self.both.lock();
            if std::mem::replace(&mut both.is_over, true) {
                return false;
            }
            both.reader.take()
        };
        self.close_write();
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }
}

impl fmt::Debug for TlsConduit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConduit").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Conduit for TlsConduit {
    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let both = &mut *self.both.lock();
        both.check()?;
        let read = both.read(&mut How::Wait(cx), buf).map_or_else(pending, |read| Poll::Ready(Ok(read)));
        if read.is_pending() && both.reader.as_ref().is_none_or(|reader| !reader.will_wake(cx.waker())) {
            both.reader = Some(cx.waker().clone());
        }
        read
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let both = &mut *self.both.lock();
        both.check()?;
        let written = both.write(&mut How::Wait(cx), buf);
        written.map_or_else(pending, |written| Poll::Ready(Ok(written)))
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let both = &mut *self.both.lock();
        both.check()?;
        both.read(&mut How::Try, buf)
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        let both = &mut *self.both.lock();
        both.check()?;
        both.write(&mut How::Try, buf)
    }

    fn close_read(&self) {}

    fn close_write(&self) {
        let both = &mut *self.both.lock();
        both.tls.send_close_notify();
        // Best effort: a socket that takes nothing now is closed without it.
        let _ = both.flush(&mut How::Try);
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut both.io).poll_shutdown(&mut cx);
    }
}
