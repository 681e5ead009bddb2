//! The task of one session: connects, reads, and wakes the session machine when something is due.
//!
//! Its inputs: bytes of the server, the clock, handles that have left it something to do. It decides nothing
//! about the session.

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

/// Room made for one read.
const READ_BYTES: usize = 16 << 10;

/// Everything that the task owns.
pub(crate) struct Connection {
    pub core: Arc<Core>,
    pub shared: Arc<Shared>,
    pub servers: Servers,
    /// The session timeout asked for.
    pub session_timeout: Duration,
    /// Admission of calls; closed with the session, so that nobody waits for it in vain.
    pub admission: Arc<Semaphore>,
    /// Room for what is to be told.
    pub done: Vec<Done>,
}

impl Drop for Connection {
    /// Also when the task is not led to its end: its runtime stops, or it panics.
    fn drop(&mut self) {
        self.core.end();
        self.admission.close();
    }
}

/// Wakes the task at the machine's next timer. With nearly every frame that timer moves a little further into
/// the future: one that is set rings early once in a while, instead of being set anew each time.
#[derive(Default)]
struct Timer {
    set: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Timer {
    /// It is to ring at `at`, or before.
    fn set(&mut self, at: Option<Instant>) {
        match at {
            Some(at) if self.set.as_ref().is_none_or(|(set, _)| at < *set) => {
                self.set = Some((at, Box::pin(time::sleep_until(at))));
            }
            Some(_) => {}
            None => self.set = None,
        }
    }

    /// Cancel safe.
    async fn wait(&mut self) {
        match &mut self.set {
            Some((_, sleep)) => sleep.await,
            None => std::future::pending().await,
        }
        self.set = None;
    }
}

/// What woke the task.
enum Input {
    Read(std::io::Result<usize>),
    Stirred(std::io::Result<()>),
    Timer,
}

impl Connection {
    /// Runs until the session has ended and everybody has been told.
    pub(crate) async fn run(mut self) {
        while !self.core.has_ended() {
            if let Some(stream) = self.reach().await {
                self.converse(stream).await;
            }
        }
    }

    /// Connects to the next server. `None`: that failed, or the session has ended.
    async fn reach(&mut self) -> Option<Stream> {
        let (endpoint, pause) = self.servers.next();
        let timeout = self.servers.connect_timeout(self.session_timeout);
        let mut connecting = pin!(async {
            time::sleep(pause).await;
            Stream::connect(&endpoint, timeout).await
        });
        loop {
            let timer = match self.core.turn(None, &mut self.done) {
                Ok(Turn { has_ended: false, timer }) => timer,
                Ok(_) | Err(_) => return None,
            };
            tokio::select! {
                biased;
                stream = &mut connecting => {
                    return stream.map_err(|error| self.fault(&endpoint, error)).ok();
                }
                _ = self.core.stirred() => {}
                () = until(timer) => {}
            }
        }
    }

    /// Speaks with one server until the connection or the session ends.
    async fn converse(&mut self, stream: Stream) {
        let endpoint = stream.peer_addr().to_string();
        let (mut read, write) = stream.into_split();
        self.core.connected(write, self.servers.elsewhere());
        let fault = self.talk(&mut read).await.err();
        // To be accepted is not enough: what we send next may be what ends each connection.
        if self.core.was_of_use() {
            self.servers.succeeded();
        }
        match fault {
            Some(fault) => {
                if let Fault::LedFrom(leader) = &fault {
                    self.servers.move_to(leader);
                }
                self.fault(&endpoint, fault);
                self.core.disconnected();
            }
            None => {
                // Best effort: what the machine still wants to say.
                let (mut write, out) = self.core.farewell();
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
        while !turn.has_ended {
            timer.set(turn.timer.map(time::look_before));
            inbox.reserve(READ_BYTES);
            let input = tokio::select! {
                biased;
                read = read.read_buf(&mut inbox) => Input::Read(read),
                written = self.core.stirred() => Input::Stirred(written),
                () = timer.wait() => Input::Timer,
            };
            let has_read = match input {
                Input::Read(Ok(0)) => return Err(Fault::Closed),
                Input::Read(Ok(_)) => true,
                Input::Read(Err(error)) | Input::Stirred(Err(error)) => {
                    return Err(Fault::Socket(error));
                }
                Input::Stirred(Ok(())) | Input::Timer => false,
            };
            turn = self.core.turn(has_read.then_some(&mut inbox), &mut self.done)?;
        }
        Ok(())
    }

    fn fault(&self, endpoint: &str, fault: impl std::error::Error + Send + Sync + 'static) {
        tracing::info!(endpoint, %fault, "connection ended");
        self.shared.last_fault.send(Some(AttemptError::new(endpoint, fault)));
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => time::sleep_until(time::look_before(at)).await,
        None => std::future::pending().await,
    }
}
