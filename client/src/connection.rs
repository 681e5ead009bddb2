//! The task of one session: owns the socket, feeds the session machine, does what it says.
//!
//! Its inputs: the handles' commands, bytes of the server, the clock. It decides nothing about the session.

use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rowlock_env::net::{ReadHalf, Stream, WriteHalf};
use rowlock_env::time::{self, Instant, Sleep};
use rowlock_proto::frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};

use crate::limits::{COMMANDS_PER_TURN, FAREWELL, FRAME_BYTES};
use crate::servers::Servers;
use crate::session::machine::{Done, Fault, Machine};
use crate::session::{Command, Shared, Vitals};

/// Room made for one read.
const READ_BYTES: usize = 16 << 10;

/// Everything that the task owns.
pub(crate) struct Connection {
    pub machine: Machine,
    pub commands: mpsc::UnboundedReceiver<Command>,
    pub shared: Arc<Shared>,
    pub servers: Servers,
    /// The session timeout asked for.
    pub session_timeout: Duration,
    /// Admission of calls; closed with the session, so that nobody waits for it in vain.
    pub admission: Arc<Semaphore>,
    /// Handles are left.
    pub attended: bool,
    /// What `shared` was told last.
    pub published: Option<Vitals>,
}

/// Wakes the task at the machine's next timer. With nearly every frame that timer moves a little further into the future:
/// one that is set rings early once in a while, instead of being set anew each time.
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
    Command(Option<Command>),
    Read(std::io::Result<usize>),
    Written(std::io::Result<usize>),
    Connected(std::io::Result<Stream>),
    Timer,
}

impl Connection {
    /// Runs until the session has ended and everybody has been told.
    pub(crate) async fn run(mut self) {
        while self.machine.ending().is_none() {
            if let Some(stream) = self.reach().await {
                self.converse(stream).await;
            }
        }
        self.commands.close();
        self.admission.close();
        while let Some(command) = self.commands.recv().await {
            self.machine.command(command);
        }
        self.settle();
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
            self.turn();
            if self.machine.ending().is_some() {
                return None;
            }
            let timer = self.machine.next_timer();
            let input = tokio::select! {
                biased;
                stream = &mut connecting => Input::Connected(stream),
                command = self.commands.recv(), if self.attended => Input::Command(command),
                () = until(timer) => Input::Timer,
            };
            match input {
                Input::Connected(Ok(stream)) => return Some(stream),
                Input::Connected(Err(error)) => {
                    self.fault(&endpoint, &error);
                    return None;
                }
                Input::Command(command) => self.take(command),
                Input::Read(_) | Input::Written(_) | Input::Timer => {}
            }
        }
    }

    /// Speaks with one server until the connection or the session ends.
    async fn converse(&mut self, stream: Stream) {
        let endpoint = stream.peer_addr().to_string();
        let (mut read, mut write) = stream.into_split();
        let (mut inbox, mut timer) = (BytesMut::new(), Timer::default());
        let (attachments, mut led_from) = (self.machine.vitals().attachments, None);
        self.machine.connected(time::now(), self.servers.elsewhere());
        while let Some(input) = self.next_input(&mut read, &mut write, &mut inbox, &mut timer).await {
            let outcome = match input {
                Input::Read(Ok(0)) => Err("closed by the server".to_owned()),
                Input::Read(Ok(_)) => self.digest(&mut inbox).map_err(|fault| {
                    let text = fault.to_string();
                    if let Fault::LedFrom(leader) = fault {
                        led_from = Some(leader);
                    }
                    text
                }),
                Input::Read(Err(error)) | Input::Written(Err(error)) => Err(error.to_string()),
                Input::Written(Ok(0)) => Err("closed while writing".to_owned()),
                Input::Command(command) => {
                    self.take(command);
                    Ok(())
                }
                Input::Written(Ok(_)) | Input::Connected(_) | Input::Timer => Ok(()),
            };
            if let Err(fault) = outcome {
                self.fault(&endpoint, &fault);
                break;
            }
        }
        if self.machine.vitals().attachments > attachments {
            self.servers.succeeded();
        }
        if let Some(leader) = led_from {
            self.servers.move_to(&leader);
        }
        if self.machine.ending().is_some() {
            // Best effort: what the machine still wants to say.
            let farewell = write.write_all(&self.machine.effects.out);
            let _ = time::timeout(FAREWELL, farewell).await;
        } else {
            // The clock is read before the socket is closed (when this function returns).
            self.machine.disconnected(time::now());
        }
        self.settle();
    }

    /// What happens next on a live connection; `None`: give it up.
    async fn next_input(
        &mut self,
        read: &mut ReadHalf,
        write: &mut WriteHalf,
        inbox: &mut BytesMut,
        timer: &mut Timer,
    ) -> Option<Input> {
        if !self.turn() || self.machine.ending().is_some() {
            return None;
        }
        // Nearly always the socket takes all of it, and one more turn is saved.
        if let Err(error) = self.write_at_once(write) {
            return Some(Input::Written(Err(error)));
        }
        timer.set(self.machine.next_timer());
        inbox.reserve(READ_BYTES);
        let out = &mut self.machine.effects.out;
        Some(tokio::select! {
            biased;
            read = read.read_buf(inbox) => Input::Read(read),
            written = write.write_buf(out), if !out.is_empty() => Input::Written(written),
            command = self.commands.recv(), if self.attended => Input::Command(command),
            () = timer.wait() => Input::Timer,
        })
    }

    /// Writes what the socket takes without waiting. Of what it does not take the rest is waited for.
    fn write_at_once(&mut self, write: &WriteHalf) -> std::io::Result<()> {
        let out = &mut self.machine.effects.out;
        if out.is_empty() {
            return Ok(());
        }
        match write.try_write(out) {
            Ok(count) => out.advance(count),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives the machine every whole frame there is.
    fn digest(&mut self, inbox: &mut BytesMut) -> Result<(), Fault> {
        let now = time::now();
        self.machine.heard(now);
        while let Some(frame) = frame::split(inbox, FRAME_BYTES)? {
            self.machine.frame(frame, now)?;
        }
        Ok(())
    }

    /// One command, and those that wait behind it; `None`: no handle is left, so the session is closed.
    fn take(&mut self, first: Option<Command>) {
        let Some(first) = first else {
            self.attended = false;
            self.machine.close(None);
            return;
        };
        self.machine.command(first);
        for _ in 1..COMMANDS_PER_TURN {
            let Ok(command) = self.commands.try_recv() else { break };
            self.machine.command(command);
        }
    }

    /// Lets the machine act on the clock, then does what it says. `false`: the connection is of no more use.
    fn turn(&mut self) -> bool {
        let result = self.machine.tick(time::now());
        self.settle();
        if let Err(fault) = &result {
            self.shared.last_fault.send(fault.to_string());
            tracing::info!(%fault, "giving up on the server");
        }
        result.is_ok()
    }

    /// Publishes first, tells the waiting calls then.
    fn settle(&mut self) {
        let vitals = self.machine.vitals();
        if self.published.as_ref() != Some(&vitals) {
            self.shared.publish(vitals.clone());
            self.published = Some(vitals);
        }
        for done in self.machine.effects.done.drain(..) {
            match done {
                // Whoever waited may have gone: nothing to do about it.
                Done::Call(reply, result) => drop(reply.send(result)),
                Done::Signal(signal, result) => drop(signal.send(result)),
                Done::Event(watch, event) => drop(watch.send(event)),
                Done::Fate((cell, fate)) => cell.turn(fate),
                Done::Watches(watches) => drop(watches),
            }
        }
    }

    fn fault(&self, endpoint: &str, fault: &dyn std::fmt::Display) {
        tracing::info!(endpoint, %fault, "connection ended");
        self.shared.last_fault.send(format!("{endpoint}: {fault}"));
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
