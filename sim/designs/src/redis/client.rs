//! Redis client library: a connection to a fixed server, or to the primary that the monitor names. The client
//! reopens the connection after errors and never sends a command twice.

use std::time::Duration;

use super::core::{Answer, Command};
use super::{Ask, Redis, Reply};
use crate::wire::{Meter, Redial, Trouble};

#[derive(Clone, Debug)]
pub enum Where {
    Fixed(String),
    /// Address of a monitor that names the primary.
    ByMonitor(String),
}

pub struct Client {
    place: Where,
    timeout: Duration,
    server: Redial<Redis>,
}

/// Timeout of a command, unless the design has another one.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Creates a client without a connection.
    pub fn new(place: Where, timeout: Duration, meter: Meter) -> Self {
        Client { place, timeout, server: Redial::new("", timeout, &meter) }
    }

    /// Runs a command. A refusal (`READONLY`, `NOREPLICAS`) is an error too: the command had no effect.
    pub async fn run(&mut self, command: Command) -> Result<Answer, Trouble> {
        match self.send(Ask::Run(command)).await? {
            Reply::Answer(Answer::Refused(_)) => {
                self.server.close();
                Err(Trouble::NoConnection)
            }
            Reply::Answer(answer) => Ok(answer),
            _ => unreachable!("commands are answered with answers"),
        }
    }

    /// Sends `WAIT` for the last write on the connection.
    pub async fn wait(&mut self, replicas: usize, timeout: Duration) -> Result<usize, Trouble> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        match self.send(Ask::Wait { replicas, timeout_ms }).await? {
            Reply::Answer(Answer::Number(n)) => Ok(usize::try_from(n).unwrap_or(0)),
            _ => Err(Trouble::NoConnection),
        }
    }

    /// Subscribes to a channel; [`Client::next_message`] of this client receives its messages.
    pub async fn subscribe(&mut self, channel: &str) -> Result<(), Trouble> {
        self.send(Ask::Subscribe(channel.to_owned())).await.map(drop)
    }

    /// Checks the existing connection with a request.
    pub async fn ping(&mut self) -> Result<(), Trouble> {
        if !self.server.is_open() {
            return Err(Trouble::NoConnection);
        }
        self.server.call(Ask::Info).await.map(drop)
    }

    /// Waits for the next message, or the end of the connection. Cancel safe.
    pub async fn next_message(&mut self) -> Result<(), Trouble> {
        self.server.next_push().await.map(drop)
    }

    async fn send(&mut self, ask: Ask) -> Result<Reply, Trouble> {
        if !self.server.is_open() {
            self.server.close();
            self.server.addr = self.find().await?;
        }
        self.server.call(ask).await
    }

    async fn find(&self) -> Result<String, Trouble> {
        let monitor = match &self.place {
            Where::Fixed(addr) => return Ok(addr.clone()),
            Where::ByMonitor(monitor) => monitor,
        };
        match Redial::<Redis>::new(monitor, self.timeout, &Meter::off()).call(Ask::Primary).await? {
            Reply::Address(addr) => Ok(addr),
            _ => Err(Trouble::NoConnection),
        }
    }
}
