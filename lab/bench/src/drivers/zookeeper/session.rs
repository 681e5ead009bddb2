//! Session of the ZooKeeper protocol over one TCP connection: one awaited request at a time, and watch
//! events.
//!
//! The calling task reads and writes the socket itself, without a second task between. The session never
//! reconnects: a broken connection makes a trial void.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use rowlock_env::net::Stream;
use rowlock_frames::raw::{Frame, RawClient};
use rowlock_frames::wire::{Wire, connect_request};
use rowlock_proto::{
    ErrorCode, EventType, OpCode, ReplyHeader, Request, Response, WatchedEvent, Xid, decode, frame,
};
use tokio::time::timeout;

/// Bound on a frame from a server: a list of ten thousand names fits.
const FRAME_MAX_BYTES: usize = 16 << 20;
/// Longest time for a server to accept a connection, and to answer the handshake.
const WAIT_MAX: Duration = Duration::from_secs(10);

pub struct Session {
    raw: RawClient,
    /// Requests whose replies no caller awaits; a refusal fails the next call.
    posted: VecDeque<Xid>,
    /// Silence after which the session sends a ping.
    heartbeat: Duration,
}

impl Session {
    /// Opens a new session with one server.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn open(address: &str, session_timeout: Duration) -> Result<Self> {
        let wire = Wire::connect(address, WAIT_MAX).await;
        let mut wire = wire.with_context(|| format!("connecting to {address}"))?;
        let request = connect_request(i32::try_from(session_timeout.as_millis())?);
        let opened = timeout(WAIT_MAX, wire.open(&request)).await.context("no answer to the handshake")?;
        let opened = opened.with_context(|| format!("opening a session with {address}"))?;
        if opened.timeout_ms <= 0 {
            bail!("{address} refused the session");
        }
        let heartbeat = Duration::from_millis(opened.timeout_ms as u64) / 3;
        Ok(Session { raw: RawClient::over(wire, opened), posted: VecDeque::new(), heartbeat })
    }

    /// Returns the connection for another user; the session sends no more pings.
    ///
    /// # Errors
    /// A reply has not been received.
    pub fn into_stream(self) -> Result<Stream> {
        ensure!(self.raw.is_idle(), "a reply was not received");
        Ok(self.raw.wire.into_stream())
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The connection broke. An error code is an answer.
    pub async fn call(&mut self, request: Request) -> Result<Result<Response, ErrorCode>> {
        let opcode = request.opcode();
        let xid = self.raw.queue(&request);
        self.raw.wire.flush().await?;
        loop {
            match self.raw.receive().await.with_context(|| format!("waiting for the reply to {opcode:?}"))? {
                Frame::Reply(header, body) if header.xid == xid => return Ok(body),
                Frame::Reply(header, body) if self.posted.front() == Some(&header.xid) => {
                    self.posted.pop_front();
                    body.context("a posted request was refused")?;
                }
                frame => self.keep(frame)?,
            }
        }
    }

    /// Buffers a request, which leaves with the next one. If the server refuses the request, the next call
    /// fails.
    pub fn post(&mut self, request: Request) {
        let posted = self.raw.queue(&request);
        self.posted.push_back(posted);
    }

    /// Keeps an event; ignores the answer to a ping.
    fn keep(&mut self, frame: Frame) -> Result<()> {
        match frame {
            Frame::Event(event) => self.raw.events.push_back(event),
            Frame::Reply(header, _) if header.xid == Xid::PING => {}
            other => bail!("an unexpected frame: {other:?}"),
        }
        Ok(())
    }

    /// Waits until `path` is reported as deleted, and sends pings meanwhile.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn deleted(&mut self, path: &str) -> Result<()> {
        let is_it = |event: &WatchedEvent| event.event_type == EventType::NodeDeleted && event.path == path;
        loop {
            while let Some(event) = self.raw.events.pop_front() {
                if is_it(&event) {
                    return Ok(());
                }
            }
            self.idle_once().await?;
        }
    }

    /// Sends only pings, for ever.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Cancel safety
    /// The session stays usable after the future is dropped.
    pub async fn stay(&mut self) -> Result<()> {
        loop {
            self.idle_once().await?;
        }
    }

    /// Receives a frame, or sends a ping if none arrives in time.
    async fn idle_once(&mut self) -> Result<()> {
        match timeout(self.heartbeat, self.raw.receive()).await {
            Ok(frame) => self.keep(frame?),
            Err(_) => {
                self.raw.queue(&Request::Ping);
                Ok(self.raw.wire.flush().await?)
            }
        }
    }

    /// Closes the session of the client.
    ///
    /// # Errors
    /// The connection broke before the answer.
    pub async fn close(mut self) -> Result<()> {
        self.call(Request::CloseSession).await?.context("closing the session")?;
        Ok(())
    }
}

/// Header and body of a reply.
pub type ReplyFrame = (ReplyHeader, Bytes);

/// Splits the next reply off the input of a connection without watches; skips answers to pings.
///
/// # Errors
/// The input is not a reply.
pub fn next_reply(input: &mut BytesMut) -> Result<Option<ReplyFrame>> {
    while let Some(mut frame) = frame::split(input, FRAME_MAX_BYTES)? {
        let header = decode::reply_header(&mut frame)?;
        match header.xid {
            Xid::EVENT => bail!("an event without a watch"),
            Xid::PING => {}
            _ => return Ok(Some((header, frame))),
        }
    }
    Ok(None)
}

/// Decodes the reply to a request of this kind.
///
/// # Errors
/// The input is not such a reply.
pub fn reply(header: ReplyHeader, mut body: Bytes, opcode: OpCode) -> Result<Result<Response, ErrorCode>> {
    match header.err {
        Some(code) => Ok(Err(code)),
        None => Ok(Ok(decode::response(&mut body, opcode)?)),
    }
}
