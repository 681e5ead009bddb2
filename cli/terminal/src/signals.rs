//! Signals that stop a command. A signal ignored at the start stays ignored, by this process and by its
//! children: `nohup` (SIGHUP) works, and a shell may start a job in the background (SIGINT, SIGQUIT).

use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, SOFTWARE};

/// Receiver of SIGINT and SIGTERM, from the call of `listen` on.
pub struct Stop {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Stop {
    /// Starts to receive both signals, which no longer end the process.
    pub fn listen() -> Result<Self, Failure> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Stop {
            interrupt: listen_unless_ignored(interrupt)?,
            terminate: listen_unless_ignored(terminate)?,
        })
    }

    /// Returns the name of the next signal. Cancel safe.
    pub async fn signal(&mut self) -> &'static str {
        tokio::select! {
            () = next(self.interrupt.as_mut()) => "SIGINT",
            () = next(self.terminate.as_mut()) => "SIGTERM",
        }
    }
}

/// Returns a shell's exit code for a command ended by the signal `name`.
pub fn shell_code(name: &str) -> u8 {
    let kind = if name == "SIGTERM" { SignalKind::terminate() } else { SignalKind::interrupt() };
    u8::try_from(128 + kind.as_raw_value()).unwrap_or(u8::MAX)
}

/// Waits for the next signal of a kind; never returns for an ignored kind. Cancel safe.
pub async fn next(receiver: Option<&mut Signal>) {
    match receiver {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Receives one kind of signal, unless ignored: receiving would end the ignoring, here and in children.
pub fn listen_unless_ignored(kind: SignalKind) -> Result<Option<Signal>, Failure> {
    if is_ignored(kind) { Ok(None) } else { listen(kind).map(Some) }
}

pub fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| Failure::new(SOFTWARE, format!("cannot listen for signals: {e}")))
}

/// Returns false if the system does not report ignored signals.
fn is_ignored(kind: SignalKind) -> bool {
    let status = rustix::fs::open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(File::from);
    let mut text = String::new();
    status.is_ok_and(|mut file| file.read_to_string(&mut text).is_ok()) && in_mask(&text, kind)
}

/// `SigIgn` is a hexadecimal mask: bit 0 is signal 1.
fn in_mask(status: &str, kind: SignalKind) -> bool {
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_off_the_mask() {
        let status =
            "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000005\nSigCgt:\t0000000000004000\n";
        let ignored = |kind| in_mask(status, kind);
        assert!(ignored(SignalKind::hangup()) && ignored(SignalKind::quit()));
        assert!(!ignored(SignalKind::interrupt()) && !ignored(SignalKind::terminate()));
        assert!(!in_mask("nonsense", SignalKind::hangup()));
    }
}
