//! A raw connection to a server: handshake, and whole frames in both directions. Knows no scripts and
//! validates no reply.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use rowlock_env::time;
use rowlock_frames::wire::{self, Wire};
use rowlock_proto::{ConnectRequest, ConnectResponse, SessionId, Zxid};

/// Longest wait for any reply. A longer silence is recorded in the transcript.
pub const WAIT_MAX: Duration = Duration::from_secs(15);
/// Number of attempts: a lagging server may refuse a session.
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

/// Id and password of a client's session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub password: Bytes,
}

/// Session timeout: longer than every script.
const TIMEOUT_MS: i32 = 20_000;

impl Connection {
    /// Connects and performs the handshake. Repeats while the server closes the connection without a
    /// response, since the server lags or starts.
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

    /// Queues a frame for [`Self::flush`].
    pub fn queue(&mut self, frame: &[u8]) {
        self.0.queue(frame);
    }

    /// Sends the queued frames.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }

    /// Receives the next frame. Treats a reset as a close, since the kernel chooses between the two.
    pub async fn receive(&mut self) -> Incoming {
        match time::timeout(WAIT_MAX, self.0.frame()).await {
            Ok(Ok(frame)) => Incoming::Frame(frame),
            Ok(Err(_)) => Incoming::Closed,
            Err(_) => Incoming::Silence,
        }
    }
}

/// Returns the first frame of a client.
pub fn connect_request(session: &Session, last_zxid_seen: Zxid) -> ConnectRequest {
    let new = ConnectRequest { last_zxid_seen, ..wire::connect_request(TIMEOUT_MS) };
    if session.password.is_empty() {
        return ConnectRequest { session_id: session.id, ..new };
    }
    ConnectRequest { session_id: session.id, password: session.password.clone(), ..new }
}
