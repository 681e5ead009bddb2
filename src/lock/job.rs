//! The command that runs under a lock: its process group, the signals that are passed on to it, its end.
//!
//! With a terminal as stdin the command stays in our process group, so that Ctrl-C, Ctrl-Z and reading from the
//! terminal work as if it had been started alone; then only the command itself is signalled, not what it started.
//! Otherwise it leads a group of its own, and the whole group is signalled.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Failure, SOFTWARE};
use crate::signals::hear;

/// A running command.
pub struct Job {
    child: Child,
    pid: Pid,
    own_group: bool,
}

impl Job {
    /// Starts `words` (program and arguments) with `env` added to our environment.
    ///
    /// It is started through ourselves (`__exec`), which ties it to our life before it becomes the command.
    pub fn start(words: &[OsString], env: &[(&str, String)]) -> Result<Job, Failure> {
        let failed = |e: std::io::Error| Failure::new(SOFTWARE, format!("cannot start a process: {e}"));
        let own_group = !std::io::stdin().is_terminal();
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("__exec").arg(std::process::id().to_string()).arg("--").args(words);
        command.envs(env.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        if own_group {
            command.process_group(0);
        }
        let child = command.spawn().map_err(failed)?;
        let raw = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = raw.expect("a child that was not waited for has an id");
        Ok(Job { child, pid, own_group })
    }

    /// Sends `signal` to the command; to its whole group if it has its own. One that has ended is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = if self.own_group {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
    }

    /// It shares our terminal, and with it the signals of the keyboard.
    pub fn hears_keyboard(&self) -> bool {
        !self.own_group
    }

    /// The exit code as a shell reports it, once it has ended. Cancel safe.
    pub async fn ended(&mut self) -> Result<u8, Failure> {
        let status = self.child.wait().await;
        status.map(code).map_err(|e| Failure::new(SOFTWARE, format!("cannot wait for the command: {e}")))
    }
}

/// The code of a command, or 128 and the number of the signal that ended it.
fn code(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    number.and_then(|n| u8::try_from(n).ok()).unwrap_or(u8::MAX)
}

/// The signals that are meant for the command and reach us.
pub struct Passed {
    heard: Vec<(Signal, unix::Signal)>,
}

impl Passed {
    /// From now on these signals no longer end the process.
    pub fn listen() -> Result<Passed, Failure> {
        let kinds = [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ];
        let mut heard = Vec::with_capacity(kinds.len());
        for (signal, kind) in kinds {
            heard.push((signal, hear(kind)?));
        }
        Ok(Passed { heard })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, heard) in &mut self.heard {
                if heard.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Whether a signal comes from the keyboard, so that the terminal gives it to the whole job.
pub fn from_keyboard(signal: Signal) -> bool {
    signal == Signal::INT || signal == Signal::QUIT
}
