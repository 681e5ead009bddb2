//! A connection between two nodes, cut into frames; the loops of dialer and listener use it.
//!
//! Writes are coalesced: all frames queued in the [`Outbox`] since the last write leave in one system call.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::busy::{self, Work};
use rowlock_env::decides;
use rowlock_env::net::{ReadHalf, Stream, WriteHalf};
use rowlock_env::time::{self, Instant};
use rowlock_metrics::memory::{Share, Tally};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::{self, Frame, FrameError, FrameReader, RequestId};
use crate::limits::{PEER_PING_AFTER, PEER_SILENCE_MAX, PEER_WRITE_BUFFER_MAX_BYTES};

/// Error that ends a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("closed by the other side")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("nothing was heard for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Protocol(String),
}

pub(super) struct Inbox {
    half: ReadHalf,
    frames: FrameReader,
    held: Share,
    /// Time of the last received bytes.
    last_heard: Instant,
    /// Send time of an unanswered ping.
    asked: Option<Instant>,
}

pub(super) struct Outbox {
    half: WriteHalf,
    buf: BytesMut,
    held: Share,
    /// Set after an unusually large frame; the buffer is freed once written.
    outgrown: bool,
    /// Time of the last written bytes.
    last_moved: Instant,
}

/// Cuts a stream into frames of at most `body_max_bytes`. Counts the memory in `tally`.
pub(super) fn split(stream: Stream, body_max_bytes: usize, tally: &Tally) -> (Inbox, Outbox) {
    let (read, write) = stream.into_split();
    let now = time::now();
    let (frames, held) = (FrameReader::new(body_max_bytes), tally.share());
    let inbox = Inbox { half: read, frames, held, last_heard: now, asked: None };
    let (buf, held) = (BytesMut::new(), tally.share());
    (inbox, Outbox { half: write, buf, held, outgrown: false, last_moved: now })
}

impl Inbox {
    /// Reads once. Cancel safe.
    pub(super) async fn fill(&mut self) -> Result<(), WireError> {
        let read = self.half.read_buf(self.frames.room()).await?;
        if read == 0 {
            return Err(WireError::Closed);
        }
        self.held.hold(self.frames.held_bytes());
        self.last_heard = time::now();
        self.asked = None;
        Ok(())
    }

    /// Returns another share of the same tally, for memory derived from received frames.
    pub(super) fn share(&self) -> Share {
        self.held.another()
    }

    /// Returns the time since the last received bytes.
    pub(super) fn silence(&self) -> Duration {
        self.last_heard.elapsed()
    }

    /// Returns the next frame among the received bytes.
    pub(super) fn take(&mut self) -> Result<Option<Frame>, WireError> {
        let frame = self.frames.next_frame()?;
        busy::spend(Work::Frame, u64::from(frame.is_some()));
        self.held.hold(self.frames.held_bytes());
        Ok(frame)
    }

    /// Waits for the next frame. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Raises the limit after the handshake.
    pub(super) fn set_body_max_bytes(&mut self, body_max_bytes: usize) {
        self.frames.set_body_max_bytes(body_max_bytes);
    }
}

impl Outbox {
    pub(super) fn push(&mut self, id: RequestId, body: &[u8]) {
        if self.buf.is_empty() {
            self.last_moved = time::now();
        }
        frame::push(&mut self.buf, id, body);
        self.held.hold(self.buf.capacity());
        self.outgrown |= self.buf.len() > 2 * PEER_WRITE_BUFFER_MAX_BYTES;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.buf.len() < PEER_WRITE_BUFFER_MAX_BYTES
    }

    /// Writes once, as much as the socket accepts. Cancel safe.
    pub(super) async fn drain_some(&mut self) -> Result<(), WireError> {
        let written = self.half.write_buf(&mut self.buf).await?;
        if written == 0 {
            return Err(WireError::Closed);
        }
        self.last_moved = time::now();
        if self.buf.is_empty() && std::mem::take(&mut self.outgrown) {
            self.buf = BytesMut::new();
        }
        self.held.hold(self.buf.capacity());
        Ok(())
    }

    /// Writes everything. Not cancel safe: a part may have been written.
    pub(super) async fn drain(&mut self) -> Result<(), WireError> {
        while !self.is_empty() {
            self.drain_some().await?;
        }
        Ok(())
    }
}

/// Period in which a dialer calls [`check_silence`].
pub(super) const TICK: Duration = PEER_PING_AFTER.checked_div(2).expect("two is not zero");

/// Sends a ping when the listener has been silent, and fails when the silence continues. For the dialer.
///
/// Without pings, a connection whose packets vanish stays "established" for a quarter of an hour, long after
/// the network has recovered. Bytes that the socket accepts count as progress, so a large frame may take its
/// time. A node that was itself paused sends a ping before it closes the connection.
pub(super) fn check_silence(inbox: &mut Inbox, outbox: &mut Outbox) -> Result<(), WireError> {
    if inbox.silence() < PEER_PING_AFTER {
        return Ok(());
    }
    let Some(asked) = inbox.asked else {
        inbox.asked = Some(time::now());
        outbox.push(RequestId::NONE, &[]);
        return Ok(());
    };
    let waited = asked.elapsed();
    let silent = if outbox.is_empty() { waited } else { waited.min(outbox.last_moved.elapsed()) };
    if decides!("peer-is-silent", silent >= PEER_SILENCE_MAX) {
        Err(WireError::Silent(inbox.silence()))
    } else {
        Ok(())
    }
}
