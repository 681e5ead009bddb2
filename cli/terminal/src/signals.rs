//! The signals that ask the command to stop. A signal that was ignored at our start stays ignored, for us and
//! for the commands that we start. So `nohup` (SIGHUP) works, and so does a shell that starts a job in the
//! background (SIGINT, SIGQUIT).

use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, SOFTWARE};

/// SIGINT and SIGTERM, heard from `listen` on.
pub struct Stop {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Stop {
    /// From now on the two signals no longer end the process.
    pub fn listen() -> Result<Self, Failure> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Stop { interrupt: hear_unless_ignored(interrupt)?, terminate: hear_unless_ignored(terminate)? })
    }

    /// The name of the next one. Cancel safe.
    pub async fn signal(&mut self) -> &'static str {
        tokio::select! {
            () = next(self.interrupt.as_mut()) => "SIGINT",
            () = next(self.terminate.as_mut()) => "SIGTERM",
        }
    }
}

/// The exit code that a shell reports for a command that the signal of this name ended.
pub fn shell_code(name: &str) -> u8 {
    let kind = if name == "SIGTERM" { SignalKind::terminate() } else { SignalKind::interrupt() };
    u8::try_from(128 + kind.as_raw_value()).unwrap_or(u8::MAX)
}

/// The next one of its kind; never for a kind that is ignored. Cancel safe.
pub async fn next(heard: Option<&mut Signal>) {
    match heard {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Hears one kind of signal, unless it is ignored: hearing it would end that, here and in what we execute.
pub fn hear_unless_ignored(kind: SignalKind) -> Result<Option<Signal>, Failure> {
    if is_ignored(kind) { Ok(None) } else { hear(kind).map(Some) }
}

pub fn hear(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| Failure::new(SOFTWARE, format!("cannot listen for signals: {e}")))
}

/// Where the system does not tell, no signal counts as ignored.
fn is_ignored(kind: SignalKind) -> bool {
    let status = rustix::fs::open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(File::from);
    let mut text = String::new();
    status.is_ok_and(|mut file| file.read_to_string(&mut text).is_ok()) && in_mask(&text, kind)
}

/// `SigIgn` is a mask in hexadecimal: bit 0 is signal 1.
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
