//! The signals that ask the command to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, SOFTWARE};

/// SIGINT and SIGTERM, heard from `listen` on.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// From now on the two signals no longer end the process.
    pub fn listen() -> Result<Self, Failure> {
        Ok(Stop { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// The name of the next one. Cancel safe.
    pub async fn signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Hears one kind of signal.
pub fn hear(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| Failure::new(SOFTWARE, format!("cannot listen for signals: {e}")))
}
