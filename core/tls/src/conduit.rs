//! An encrypted connection: a plain stream below, plain bytes above, a rustls connection between.
//!
//! The halves of a stream share the connection under a short lock: reading only reads from the socket,
//! writing only writes to the socket, except for pending TLS messages (an alert, a new key).
//!
//! A write completes once the system has accepted the ciphertext, because the upper layers never flush. Until
//! then the write returns `Pending` or `WouldBlock` although rustls has the bytes: a retry must begin with
//! the same bytes, and every caller with a write buffer does so.

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

use crate::error;

pub(crate) struct TlsConduit {
    peer: SocketAddr,
    /// Expiry of the peer's certificate in milliseconds since 1970; `i64::MAX` without a certificate.
    expires_ms: i64,
    state: Mutex<TlsState>,
}

pub(crate) struct TlsState {
    io: Stream,
    tls: Connection,
    /// Bytes accepted by rustls but not yet reported to the writer.
    taken: usize,
    /// Frame boundaries of a server's output: each frame becomes a separate record.
    frames: Option<Frames>,
    /// Waker of the waiting reader.
    reader: Option<Waker>,
    /// True after an end of the connection because of the peer's certificate.
    is_ended: bool,
}

/// Mode of a socket call: wait for the socket, or try once.
enum SocketMode<'a, 'b> {
    Wait(&'a mut Context<'b>),
    Try,
}

struct Socket<'a, 'b, 'c> {
    io: &'a mut Stream,
    mode: &'a mut SocketMode<'b, 'c>,
}

impl io::Read for Socket<'_, '_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.mode {
            SocketMode::Try => self.io.try_read(buf),
            SocketMode::Wait(cx) => {
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
        match self.mode {
            SocketMode::Try => self.io.try_write(buf),
            SocketMode::Wait(cx) => match Pin::new(&mut *self.io).poll_write(cx, buf) {
                Poll::Ready(written) => written,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a whole client hello. Cancel safe.
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
                // Best effort: the connection is closed anyway.
                let _ = alert.write_all(&mut Socket { io, mode: &mut SocketMode::Try });
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
        match hello.read_tls(&mut Socket { io, mode: &mut SocketMode::Wait(cx) }) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return pending(error),
        }
    }
}

/// Starts the server's side of the handshake. A refused client receives an alert with the reason.
pub(crate) fn answer_hello(
    io: &mut Stream,
    hello: server::Accepted,
    config: Arc<ServerConfig>,
) -> Result<Connection, rustls::Error> {
    match hello.into_connection(config) {
        Ok(tls) => Ok(tls.into()),
        Err((error, mut alert)) => {
            let _ = alert.write_all(&mut Socket { io, mode: &mut SocketMode::Try });
            Err(error)
        }
    }
}

impl TlsState {
    pub(crate) fn new(io: Stream, tls: Connection, frames: Option<Frames>) -> Self {
        TlsState { io, tls, taken: 0, frames, reader: None, is_ended: false }
    }

    fn check(&self) -> io::Result<()> {
        if self.is_ended {
            let why = "the certificate of the other side does not count any more";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        Ok(())
    }

    pub(crate) fn tls(&self) -> &Connection {
        &self.tls
    }

    /// Runs the handshake, including the last pending messages. Cancel safe.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut mode = SocketMode::Wait(cx);
        let done = loop {
            if let Err(error) = self.flush(&mut mode) {
                break Err(error);
            }
            if !self.tls.is_handshaking() {
                break Ok(());
            }
            match self.fill(&mut mode) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        done.map_or_else(pending, |()| Poll::Ready(Ok(())))
    }

    fn flush(&mut self, mode: &mut SocketMode<'_, '_>) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut Socket { io: &mut self.io, mode })? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Reads once from the socket; returns 0 at the end of the stream.
    fn fill(&mut self, mode: &mut SocketMode<'_, '_>) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut Socket { io: &mut self.io, mode })?;
        if let Err(error) = self.tls.process_new_packets() {
            // Sends the alert without waiting for the socket.
            let _ = self.flush(&mut SocketMode::Try);
            return Err(error::broken(&error));
        }
        Ok(count)
    }

    fn read(&mut self, mode: &mut SocketMode<'_, '_>, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Many clients hang up without a TLS close. Frames have lengths, so the reader detects a
                // truncated frame.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.fill(mode)?;
            if self.tls.wants_write() && self.taken == 0 {
                // The next write sends the rest.
                let _ = self.flush(&mut SocketMode::Try);
            }
        }
    }

    /// Passes bytes to rustls, in at least a record per write. Returns the accepted bytes.
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

    fn write(&mut self, mode: &mut SocketMode<'_, '_>, buf: &[u8]) -> io::Result<usize> {
        if self.taken == 0 {
            self.flush(mode)?;
            self.taken = self.encrypt(buf)?;
        }
        self.flush(mode)?;
        let taken = std::mem::take(&mut self.taken);
        assert!(taken <= buf.len(), "Invariant: a write that is tried again begins with the same bytes");
        Ok(taken)
    }
}

fn pending<T>(error: io::Error) -> Poll<io::Result<T>> {
    if error.kind() == io::ErrorKind::WouldBlock { Poll::Pending } else { Poll::Ready(Err(error)) }
}

impl TlsConduit {
    /// Wraps a connection. `expires_ms` is the expiry of the peer's certificate.
    pub(crate) fn new(state: TlsState, expires_ms: Option<i64>) -> Self {
        let expires_ms = expires_ms.unwrap_or(i64::MAX);
        TlsConduit { peer: state.io.peer_addr(), expires_ms, state: Mutex::new(state) }
    }

    pub(crate) fn expires_ms(&self) -> i64 {
        self.expires_ms
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let state = self.state.lock();
        state.tls.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
    }

    /// Ends the connection: later reads and writes fail. Returns false if the connection had already ended.
    pub(crate) fn end(&self) -> bool {
        let reader = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_ended, true) {
                return false;
            }
            state.reader.take()
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
        let state = &mut *self.state.lock();
        state.check()?;
        let read =
            state.read(&mut SocketMode::Wait(cx), buf).map_or_else(pending, |read| Poll::Ready(Ok(read)));
        if read.is_pending() && state.reader.as_ref().is_none_or(|reader| !reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        read
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.lock();
        state.check()?;
        let written = state.write(&mut SocketMode::Wait(cx), buf);
        written.map_or_else(pending, |written| Poll::Ready(Ok(written)))
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let state = &mut *self.state.lock();
        state.check()?;
        state.read(&mut SocketMode::Try, buf)
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        let state = &mut *self.state.lock();
        state.check()?;
        state.write(&mut SocketMode::Try, buf)
    }

    fn close_read(&self) {}

    fn close_write(&self) {
        let state = &mut *self.state.lock();
        state.tls.send_close_notify();
        // Best effort: a full socket is closed without the alert.
        let _ = state.flush(&mut SocketMode::Try);
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut state.io).poll_shutdown(&mut cx);
    }
}

const HEAD_BYTES: usize = 4;

/// Parser state for the bytes in a single direction.
///
/// Boundaries of ZooKeeper's frames in a server's output.
///
/// Each frame for a client becomes a separate TLS record, as in ZooKeeper's server. A client such as kazoo
/// 2.11 polls only the socket and ignores the bytes decrypted earlier by its TLS library: the client would
/// notice the second frame of a record only after the next socket event.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Received bytes of the next frame's length.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Missing bytes of the current frame.
    left: usize,
}

impl Frames {
    /// Returns the number of leading bytes in the current frame: all bytes, or the bytes up to the frame's
    /// end.
    fn piece(&self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            return self.left.min(bytes.len());
        }
        let missing = HEAD_BYTES - self.head_bytes;
        if bytes.len() <= missing {
            return bytes.len();
        }
        let mut head = self.head;
        head[self.head_bytes..].copy_from_slice(&bytes[..missing]);
        missing.saturating_add(length(head)).min(bytes.len())
    }

    /// Advances over sent bytes, at most a piece.
    fn advance(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.left == 0 {
            let count = (HEAD_BYTES - self.head_bytes).min(rest.len());
            self.head[self.head_bytes..self.head_bytes + count].copy_from_slice(&rest[..count]);
            self.head_bytes += count;
            rest = &rest[count..];
            if self.head_bytes < HEAD_BYTES {
                return;
            }
            (self.left, self.head_bytes) = (length(self.head), 0);
        }
        assert!(rest.len() <= self.left, "Invariant: a piece does not go beyond its frame");
        self.left -= rest.len();
    }
}

/// Decodes a frame's length. The reply to a four-letter word has no length: its letters decode to a huge
/// number.
fn length(head: [u8; HEAD_BYTES]) -> usize {
    usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> Vec<u8> {
        let mut frame = u32::try_from(length).expect("is short").to_be_bytes().to_vec();
        frame.extend(std::iter::repeat_n(7, length));
        frame
    }

    /// Returns the pieces of `bytes` if each write accepts at most `room` bytes.
    fn pieces(bytes: &[u8], room: usize) -> Vec<usize> {
        let (mut frames, mut rest, mut found) = (Frames::default(), bytes, Vec::new());
        while !rest.is_empty() {
            let offered = &rest[..rest.len().min(room)];
            let piece = frames.piece(offered);
            assert!(piece > 0);
            frames.advance(&offered[..piece]);
            rest = &rest[piece..];
            found.push(piece);
        }
        found
    }

    #[test]
    fn each_frame_is_a_piece_even_if_its_bytes_arrive_in_parts() {
        let bytes = [frame(3), frame(0), frame(10), frame(1)].concat();
        assert_eq!(pieces(&bytes, 1_000), [7, 4, 14, 5]);
        for room in 1..30 {
            let mut ends: Vec<usize> = Vec::new();
            let mut at = 0;
            for piece in pieces(&bytes, room) {
                at += piece;
                ends.push(at);
            }
            for end in [7, 11, 25, 30] {
                assert!(ends.contains(&end), "no piece of at most {room} ends at {end}: {ends:?}");
            }
        }
        assert_eq!(pieces(b"Zookeeper version: 3.8", 1_000), [22]);
    }
}
