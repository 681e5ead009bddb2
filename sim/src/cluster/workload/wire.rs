//! One connection between a client and a node, in frames. Knows nothing of sessions.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::{ReadHalf, Stream, WriteHalf};
use rowlock_proto::frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Room made for one read.
const READ_BYTES: usize = 16 << 10;
/// The largest frame that a node may send.
const FRAME_MAX: usize = 64 << 20;

/// The connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// An open connection.
pub struct Wire {
    read: ReadHalf,
    write: WriteHalf,
    inbox: BytesMut,
}

impl Wire {
    /// Connects to `endpoint` within `timeout`.
    pub async fn dial(endpoint: &str, timeout: Duration) -> Result<Wire, Broken> {
        Ok(Wire::over(Stream::connect(endpoint, timeout).await.map_err(|_| Broken)?))
    }

    /// Of this stream.
    pub fn over(stream: Stream) -> Wire {
        let (read, write) = stream.into_split();
        Wire { read, write, inbox: BytesMut::new() }
    }

    /// Its two directions; what has come and was not taken is lost.
    pub fn into_halves(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }

    /// Hands over all of it.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.write.write_all(bytes).await.map_err(|_| Broken)
    }

    /// The next frame.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn frame(&mut self) -> Result<Bytes, Broken> {
        loop {
            if let Some(frame) = frame::split(&mut self.inbox, FRAME_MAX).map_err(|_| Broken)? {
                return Ok(frame);
            }
            self.inbox.reserve(READ_BYTES);
            match self.read.read_buf(&mut self.inbox).await {
                Ok(0) | Err(_) => return Err(Broken),
                Ok(_) => {}
            }
        }
    }
}
