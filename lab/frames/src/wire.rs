//! A connection to a server, cut into frames of the ZooKeeper protocol. Must never decode a frame, except in
//! the handshake.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::Stream;
use rowlock_proto::response::ConnectResponse;
use rowlock_proto::{ConnectRequest, Request, SessionId, Xid, Zxid, decode, encode, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Largest frame to receive: above the largest legal reply.
const FRAME_MAX_BYTES: usize = 64 << 20;
/// Buffer space reserved before a read.
const READ_BYTES: usize = 16 << 10;

/// A connection with its buffers.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
}

impl Wire {
    /// Connects to `address` within `timeout`.
    ///
    /// # Errors
    /// The server cannot be reached in time.
    pub async fn connect(address: &str, timeout: Duration) -> io::Result<Wire> {
        Ok(Wire::over(Stream::connect(address, timeout).await?))
    }

    pub fn over(stream: Stream) -> Wire {
        Wire { stream, input: BytesMut::new(), output: BytesMut::new() }
    }

    /// Returns true if no output is queued and no received bytes are unread.
    pub fn is_idle(&self) -> bool {
        self.input.is_empty() && self.output.is_empty()
    }

    /// Returns the connection without its buffers: unread bytes are lost.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Queues bytes for [`Wire::flush`].
    pub fn queue(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Queues a request for [`Wire::flush`].
    pub fn queue_request(&mut self, xid: Xid, request: &Request) {
        encode::request_of(xid, request, &mut self.output);
    }

    /// Sends the queued bytes. Cancel safe: unsent bytes stay queued.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.output).await
    }

    /// Sends `bytes` after the queued bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.queue(bytes);
        self.flush().await
    }

    /// Receives the next frame. Cancel safe.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the connection; the connection is broken; a frame is too large.
    pub async fn frame(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(frame) = frame::split(&mut self.input, FRAME_MAX_BYTES).map_err(io::Error::other)? {
                return Ok(frame);
            }
            self.input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Requests a session. A server refuses with [`SessionId::NONE`].
    ///
    /// # Errors
    /// The errors of [`Wire::frame`].
    pub async fn open(&mut self, request: &ConnectRequest) -> io::Result<ConnectResponse> {
        encode::connect_request(request, &mut self.output);
        self.flush().await?;
        self.opened().await
    }

    /// Receives the response to a handshake sent before.
    ///
    /// # Errors
    /// The errors of [`Wire::frame`].
    pub async fn opened(&mut self) -> io::Result<ConnectResponse> {
        decode::connect_response(self.frame().await?).map_err(io::Error::other)
    }

    /// Closes the sending direction, as the end of a process does.
    pub async fn hang_up(&mut self) {
        // The server may have closed the connection already.
        let _ = self.stream.shutdown().await;
    }
}

/// Returns a request for a new session.
pub fn connect_request(timeout_ms: i32) -> ConnectRequest {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: Zxid(0),
        timeout_ms,
        session_id: SessionId::NONE,
        password: Bytes::from_static(&[0; 16]),
        read_only: Some(false),
    }
}

/// Returns a request to resume the session granted in `opened`.
pub fn resume_request(opened: &ConnectResponse) -> ConnectRequest {
    let (session_id, password) = (opened.session_id, opened.password.clone());
    ConnectRequest { session_id, password, ..connect_request(opened.timeout_ms) }
}

/// Encodes a request for a new session.
pub fn handshake(timeout_ms: i32) -> BytesMut {
    let mut out = BytesMut::new();
    encode::connect_request(&connect_request(timeout_ms), &mut out);
    out
}
