//! One raw connection to a server: handshake, whole frames out and in. It knows no scripts and judges no
//! answer.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use rowlock_env::time;
use rowlock_frames::wire::{self, Wire};
use rowlock_proto::{ConnectRequest, ConnectResponse, SessionId, Zxid};

/// How long a server may take for any answer. If it takes longer, the transcript says so.
pub const WAIT_MAX: Duration = Duration::from_secs(15);
/// How often a server may refuse a session because it lags.
const CONNECT_TRIES: usize = 200;
const RETRY_PAUSE: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub struct Connection(Wire);

#[derive(Debug)]
pub enum Incoming {
    Frame(Bytes),
    Closed,
    Silence,
}

/// What a client knows of its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub password: Bytes,
}

/// A session timeout that no script outlives.
const TIMEOUT_MS: i32 = 20_000;

impl Connection {
    /// Connects and shakes hands; repeats while the server closes without an answer (it lags, or is
    /// starting).
    pub async fn open(host: &str, session: &Session, seen: Zxid) -> anyhow::Result<(Self, ConnectResponse)> {
        for _ in 0..CONNECT_TRIES {
            let wire = Wire::connect(host, WAIT_MAX).await;
            let mut wire = wire.with_context(|| format!("cannot connect to {host}"))?;
            let answer = time::timeout(WAIT_MAX, wire.open(&connect_request(session, seen))).await;
            if let Ok(Ok(response)) = answer {
                return Ok((Connection(wire), response));
            }
            time::sleep(RETRY_PAUSE).await;
        }
        bail!("{host} does not answer a handshake")
    }

    /// Appends a frame to those that wait for [`Self::flush`].
    pub fn put(&mut self, frame: &[u8]) {
        self.0.put(frame);
    }

    /// Sends what was put.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }

    /// The next frame. A reset is a close: which of the two it is, is the kernel's choice.
    pub async fn receive(&mut self) -> Incoming {
        match time::timeout(WAIT_MAX, self.0.frame()).await {
            Ok(Ok(frame)) => Incoming::Frame(frame),
            Ok(Err(_)) => Incoming::Closed,
            Err(_) => Incoming::Silence,
        }
    }
}

/// The first frame of a client.
pub fn connect_request(session: &Session, last_zxid_seen: Zxid) -> ConnectRequest {
    let new = ConnectRequest { last_zxid_seen, ..wire::connect_request(TIMEOUT_MS) };
    if session.password.is_empty() {
        return ConnectRequest { session_id: session.id, ..new };
    }
    ConnectRequest { session_id: session.id, password: session.password.clone(), ..new }
}
