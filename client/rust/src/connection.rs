//! Task of a session: connects, reads, and wakes the session machine when something is due.
//!
//! The task's inputs are the bytes of the server, the clock, and work left by handles. The task decides
//! nothing about the session.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rowlock_env::net::{ReadHalf, Stream};
use rowlock_env::time::{self, Instant, Sleep};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::connect_error::AttemptError;
use crate::limits::FAREWELL;
use crate::servers::Servers;
use crate::session::Shared;
use crate::session::core::{Core, Turn};
use crate::session::machine::{Done, Fault};
#[cfg(feature = "tls")]
use crate::tls::Dialer;

/// Capacity reserved before a read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Beginning of a TLS alert, which a TLS server sends to plain clients. Read as a length, these bytes would
/// mean hundreds of megabytes.
const ALERT: &[u8] = &[0x15, 3];

/// Beginning of an answer by an HTTP server.
const HTTP: &[u8] = b"HTTP/";

pub(crate) struct Connection {
    pub core: Arc<Core>,
    pub shared: Arc<Shared>,
    pub servers: Servers,
    pub session_timeout: Duration,
    pub allow_plaintext_passwords: bool,
    /// Attempts in a row on connections too insecure for a credential.
    pub kept_back: usize,
    #[cfg(feature = "tls")]
    pub dialer: Option<Dialer>,
    /// Admission of calls; closed with the session to release waiting calls.
    pub admission: Arc<Semaphore>,
    /// Buffer for the completions of a turn.
    pub done: Vec<Done>,
}

impl Drop for Connection {
    /// Ends the session even if the task did not finish: its runtime stopped, or the task panicked.
    fn drop(&mut self) {
        self.core.end();
        self.admission.close();
    }
}

/// Wakes the task at the machine's next timer. Nearly every frame moves the machine's timer a little into the
/// future: an armed sleep rings early once in a while, instead of being reset each time.
#[derive(Default)]
struct Timer {
    set: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Timer {
    /// Arms the timer to ring at `at` or before.
    fn set(&mut self, at: Option<Instant>) {
        match at {
            Some(at) if self.set.as_ref().is_none_or(|(set, _)| at < *set) => {
                self.set = Some((at, Box::pin(time::sleep_until(at))));
            }
            Some(_) => {}
            None => self.set = None,
        }
    }

    async fn wait(&mut self) {
        match &mut self.set {
            Some((_, sleep)) => sleep.await,
            None => std::future::pending().await,
        }
        self.set = None;
    }
}

enum Input {
    Read(std::io::Result<usize>),
    PendingWork(std::io::Result<()>),
    Timer,
}

impl Connection {
    /// Runs until the session has ended and all callers have their results.
    pub(crate) async fn run(mut self) {
        while !self.core.has_ended() {
            if let Some(stream) = self.reach().await {
                self.converse(stream).await;
            }
        }
    }

    /// Connects to the next server. `None`: the attempt failed, or the session has ended.
    async fn reach(&mut self) -> Option<Stream> {
        let (endpoint, pause) = self.servers.next(self.core.left());
        let timeout = self.servers.connect_timeout(self.session_timeout);
        #[cfg(feature = "tls")]
        let dialer = self.dialer.clone();
        let mut connecting = pin!(async {
            time::sleep(pause).await;
            let stream = Stream::connect(&endpoint, timeout).await?;
            #[cfg(feature = "tls")]
            if let Some(dialer) = dialer {
                return dialer.secure(stream, &endpoint, timeout).await;
            }
            Ok(stream)
        });
        let stream: std::io::Result<Stream> = loop {
            let timer = match self.core.turn(None, &mut self.done) {
                Ok(Turn { has_ended: false, timer }) => timer,
                Ok(_) | Err(_) => return None,
            };
            tokio::select! {
                biased;
                stream = &mut connecting => break stream,
                _ = self.core.pending_work() => {}
                () = until(timer) => {}
            }
        };
        match stream {
            Ok(stream) => self.private(&endpoint, stream),
            Err(error) => {
                self.kept_back = 0;
                self.fault(&endpoint, error);
                None
            }
        }
    }

    /// Returns the connection if the session may send credentials over the connection, or has none to send.
    fn private(&mut self, endpoint: &str, stream: Stream) -> Option<Stream> {
        let is_local = stream.peer_addr().ip().to_canonical().is_loopback();
        if self.core.takes_connection(self.allow_plaintext_passwords || is_local || self.is_encrypted()) {
            self.kept_back = 0;
            return Some(stream);
        }
        self.fault(endpoint, Fault::PlaintextPassword);
        self.kept_back += 1;
        if self.kept_back >= self.servers.count() {
            self.core.reaches_no_private_connection();
        }
        None
    }

    #[cfg(feature = "tls")]
    fn is_encrypted(&self) -> bool {
        self.dialer.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Serves a connection until the connection or the session ends.
    async fn converse(&mut self, stream: Stream) {
        let endpoint = stream.peer_addr().to_string();
        let (mut read, write) = stream.into_split();
        self.core.connected(write, self.servers.elsewhere());
        let fault = self.talk(&mut read).await.err();
        // Acceptance is not enough: the next request may be the cause that ends each connection.
        let (was_of_use, was_sound) = (self.core.was_of_use(), self.core.is_sound());
        if was_of_use {
            self.servers.succeeded();
        } else if was_sound {
            self.servers.accepted();
        }
        match fault {
            Some(Fault::Closed) if !was_of_use && !was_sound => {
                self.fault(&endpoint, Fault::ClosedAtOnce);
                self.core.disconnected();
            }
            Some(fault) => {
                if let Fault::LedFrom(leader) = &fault {
                    self.servers.move_to(leader);
                }
                self.fault(&endpoint, fault);
                self.core.disconnected();
            }
            None => {
                // Best effort: the machine's remaining output.
                let (mut write, out) = self.core.final_write();
                let _ = time::timeout(FAREWELL, write.write_all(&out)).await;
            }
        }
    }

    /// Reads, writes and waits on a live connection, until the session ends.
    ///
    /// # Errors
    /// The connection is of no more use.
    async fn talk(&mut self, read: &mut ReadHalf) -> Result<(), Fault> {
        let (mut inbox, mut timer) = (BytesMut::new(), Timer::default());
        let mut turn = self.core.turn(None, &mut self.done)?;
        let mut is_first = true;
        while !turn.has_ended {
            timer.set(turn.timer.map(time::next_clock_check));
            inbox.reserve(READ_BYTES);
            let input = tokio::select! {
                biased;
                read = read.read_buf(&mut inbox) => Input::Read(read),
                written = self.core.pending_work() => Input::PendingWork(written),
                () = timer.wait() => Input::Timer,
            };
            let has_read = match input {
                Input::Read(Ok(0)) => return Err(Fault::Closed),
                Input::Read(Ok(_)) => true,
                Input::Read(Err(error)) | Input::PendingWork(Err(error)) => {
                    return Err(Fault::Socket(error));
                }
                Input::PendingWork(Ok(())) | Input::Timer => false,
            };
            if let Input::PendingWork(_) = input {
                // The first of several tasks with a request woke the loop, for example after a read with many
                // replies. The other tasks run first: all requests then leave in a single write. A lone call
                // was sent before ([`Core::call`]).
                tokio::task::yield_now().await;
            }
            if has_read && std::mem::take(&mut is_first) {
                if !self.is_encrypted() && inbox.starts_with(ALERT) {
                    return Err(Fault::WantsTls);
                }
                if inbox.starts_with(HTTP) {
                    return Err(Fault::Http);
                }
            }
            turn = self.core.turn(has_read.then_some(&mut inbox), &mut self.done)?;
        }
        Ok(())
    }

    fn fault(&self, endpoint: &str, fault: impl std::error::Error + Send + Sync + 'static) {
        tracing::info!(endpoint, %fault, "connection ended");
        let fault = AttemptError::new(endpoint, fault);
        let server = self.servers.current();
        self.shared.faults.modify(|faults| {
            faults.insert(server, fault.clone());
        });
        self.shared.last_fault.send(Some(fault));
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => time::sleep_until(time::next_clock_check(at)).await,
        None => std::future::pending().await,
    }
}
