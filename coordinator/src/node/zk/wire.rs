//! The socket of a connection with its input buffer. Handles only bytes.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rowlock_env::net::Stream;
use rowlock_env::time;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::end_reason::EndReason;
use crate::limits;

/// Size of one read of an idle connection. The buffer is on the stack: there may be many thousand idle
/// connections.
const READ_MIN_BYTES: u32 = 4 << 10;
/// Size of one read under load.
const READ_MAX_BYTES: u32 = 64 << 10;
/// Maximum size of an empty buffer: larger buffers are freed, so that a burst does not cost memory for ever.
const BUFFER_KEEP_BYTES: usize = 16 << 10;
/// Time for a client to take the last bytes before the socket is closed.
const LAST_BYTES_WAIT: Duration = Duration::from_secs(2);
/// Time limit for reading until the client hangs up, after a close.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes discarded while lingering.
const LINGER_MAX_BYTES: usize = 1 << 20;

pub(super) struct Wire {
    stream: Stream,
    /// Bytes read and not consumed.
    pub(super) input: BytesMut,
    /// Size of the next read: doubled after a full read, halved after a smaller one.
    room: u32,
    /// Set when `input` has grown beyond the kept size.
    oversized: bool,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Wire { stream, input: BytesMut::new(), room: READ_MIN_BYTES, oversized: false }
    }

    /// Frees the buffer of a burst.
    pub(super) fn tidy(&mut self) {
        if self.oversized && self.input.is_empty() {
            self.input = BytesMut::new();
            self.oversized = false;
        }
    }

    /// Frees the input buffer, if it is empty.
    pub(super) fn rest(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.oversized = false;
        }
    }

    /// Handles the result of a read.
    pub(super) fn was_read(&mut self, result: io::Result<usize>) -> Result<usize, EndReason> {
        match result? {
            0 => Err(EndReason::HungUp),
            count => {
                self.oversized |= self.input.len() > BUFFER_KEEP_BYTES;
                let filled = count >= self.room as usize;
                self.room = if filled { self.room * 2 } else { self.room / 2 };
                self.room = self.room.clamp(READ_MIN_BYTES, READ_MAX_BYTES);
                Ok(count)
            }
        }
    }

    /// Waits for more bytes.
    pub(super) async fn fill(&mut self) -> Result<usize, EndReason> {
        self.tidy();
        let result = poll_fn(|cx| self.poll_read(cx)).await;
        self.was_read(result)
    }

    /// Takes the bytes that have arrived, up to a bound, without waiting for more. Fails if the client has
    /// hung up after them.
    pub(super) async fn take_arrived(&mut self) -> Result<(), EndReason> {
        while self.input.len() < limits::HANDSHAKE_ARRIVED_MAX_BYTES {
            match poll_fn(|cx| Poll::Ready(self.poll_read(cx))).await {
                Poll::Ready(result) => self.was_read(result)?,
                Poll::Pending => break,
            };
        }
        Ok(())
    }

    /// Reads into `input`; the result belongs to [`Self::was_read`]. A connection in wait for a few bytes
    /// holds no memory for the read. Cancel safe.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.room > READ_MIN_BYTES {
            self.input.reserve(self.room as usize);
            return pin!(self.stream.read_buf(&mut self.input)).poll(cx);
        }
        let mut space = [MaybeUninit::uninit(); READ_MIN_BYTES as usize];
        let mut came = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut came))?;
        self.input.extend_from_slice(came.filled());
        Poll::Ready(Ok(came.filled().len()))
    }

    /// Waits until the socket takes bytes of `output`. Cancel safe.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        output: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        pin!(self.stream.write_buf(output)).poll(cx)
    }

    /// Writes the bytes that the socket takes without waiting.
    pub(super) fn try_write(&mut self, output: &mut BytesMut) -> Result<(), EndReason> {
        let before = output.len();
        while !output.is_empty() {
            match self.stream.try_write(output) {
                Ok(0) => return Err(EndReason::HungUp),
                Ok(count) => output.advance(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        if output.is_empty() && before > BUFFER_KEEP_BYTES {
            *output = BytesMut::new();
        }
        Ok(())
    }

    /// Sends the last bytes and hangs up gracefully: closing a socket with unread input would reset the
    /// connection, and the client might lose its last reply.
    pub(super) async fn finish(mut self, mut output: BytesMut) {
        let last_bytes = async {
            self.stream.write_all_buf(&mut output).await?;
            self.stream.shutdown().await
        };
        if !matches!(time::timeout(LAST_BYTES_WAIT, last_bytes).await, Ok(Ok(()))) {
            return;
        }
        let drained = async {
            let mut left = LINGER_MAX_BYTES;
            loop {
                self.input.clear();
                self.input.reserve(READ_MIN_BYTES as usize);
                match self.stream.read_buf(&mut self.input).await {
                    Ok(count) if count > 0 && count <= left => left -= count,
                    Ok(_) | Err(_) => return,
                }
            }
        };
        // A client that does not hang up in time loses the rest.
        let _ = time::timeout(LINGER, drained).await;
    }
}
