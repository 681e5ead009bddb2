//! One raw connection to a server: handshake, whole frames out and in. It knows no scripts and judges no
//! answer.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use rowlock_env::net::Stream;
use rowlock_env::time;
use rowlock_proto::{ConnectRequest, ConnectResponse, SessionId, Zxid, decode, encode, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a server may take for any answer. If it takes longer, the transcript says so.
pub const WAIT_MAX: Duration = Duration::from_secs(15);
/// How often a server may refuse a session because it lags.
const CONNECT_TRIES: usize = 200;
/// Between those.
const RETRY_PAUSE: Duration = Duration::from_millis(25);
/// What a server may send in one frame.
const FRAME_MAX_BYTES: usize = 16 << 20;

/// A connection with a session.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
}

/// What came.
#[derive(Debug)]
pub enum Incoming {
    /// A whole frame.
    Frame(Bytes),
    /// The server has closed.
    Closed,
    /// Nothing within [`WAIT_MAX`].
    Silence,
}

/// What a client knows of its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// 0 for none.
    pub id: SessionId,
    /// Proves that it is ours.
    pub password: Bytes,
}

/// A session timeout that no script outlives.
const TIMEOUT_MS: i32 = 20_000;

impl Connection {
    /// Connects and shakes hands; repeats while the server closes without an answer (it lags, or is
    /// starting).
    pub async fn open(host: &str, session: &Session, seen: Zxid) -> anyhow::Result<(Self, ConnectResponse)> {
        for _ in 0..CONNECT_TRIES {
            let mut connection = Connection::connect(host).await?;
            if let Ok(Some(response)) = connection.shake_hands(session, seen).await {
                return Ok((connection, response));
            }
            time::sleep(RETRY_PAUSE).await;
        }
        bail!("{host} does not answer a handshake")
    }

    /// Only TCP.
    pub async fn connect(host: &str) -> anyhow::Result<Self> {
        let stream =
            Stream::connect(host, WAIT_MAX).await.with_context(|| format!("cannot connect to {host}"))?;
        Ok(Connection { stream, input: BytesMut::new(), output: BytesMut::new() })
    }

    async fn shake_hands(&mut self, session: &Session, seen: Zxid) -> io::Result<Option<ConnectResponse>> {
        encode::connect_request(&connect_request(session, seen), &mut self.output);
        self.flush().await?;
        match self.receive().await {
            Incoming::Frame(frame) => decode::connect_response(frame).map(Some).map_err(io::Error::other),
            Incoming::Closed | Incoming::Silence => Ok(None),
        }
    }

    /// Appends a frame to those that wait for [`Self::flush`].
    pub fn put(&mut self, frame: &[u8]) {
        self.output.extend_from_slice(frame);
    }

    /// Sends what was put.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// The next frame. A reset is a close: which of the two it is, is the kernel's choice.
    pub async fn receive(&mut self) -> Incoming {
        loop {
            match frame::split(&mut self.input, FRAME_MAX_BYTES) {
                Ok(Some(frame)) => return Incoming::Frame(frame),
                Ok(None) => {}
                Err(_) => return Incoming::Closed,
            }
            match time::timeout(WAIT_MAX, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) => return Incoming::Closed,
                Err(_) => return Incoming::Silence,
            }
        }
    }
}

/// The first frame of a client.
pub fn connect_request(session: &Session, last_zxid_seen: Zxid) -> ConnectRequest {
    let password =
        if session.password.is_empty() { Bytes::from_static(&[0; 16]) } else { session.password.clone() };
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen,
        timeout_ms: TIMEOUT_MS,
        session_id: session.id,
        password,
        read_only: Some(false),
    }
}
