//! Controlling terminal, lent to a command in its own process group, and the signals that this process
//! receives and forwards to the command.
//!
//! A terminal has one foreground group. Background groups are stopped when reading from the terminal, and do
//! not get Ctrl-C. Therefore this process acts like a shell: lends the terminal to the command's group, takes
//! the terminal back when the command stops or ends, and stops together with the command, so that Ctrl-Z,
//! `fg` and `bg` work on the whole. After `fg` the lock is checked before the command continues.
//!
//! With stdin and stdout at the terminal, the command gets the terminal from the start. In a pipeline the
//! command gets the terminal on demand (the kernel stops a background group that reads), as a pager at the
//! other end may need the terminal too.

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_process_group};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{self, SignalKind};

use super::job::parent_of;
use crate::exit::Failure;
use crate::signals::listen_unless_ignored;

pub struct Terminal {
    tty: OwnedFd,
    ours: Pid,
}

impl Terminal {
    /// Opens the controlling terminal; `None` under a service manager, cron or CI.
    pub fn controlling() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Terminal { tty, ours: getpgrp() })
    }

    /// Returns true if no other process of our job is likely to need the terminal.
    pub fn is_interactive(&self) -> bool {
        isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout()) && self.is_own_foreground()
    }

    /// Returns true if our group is in the foreground.
    pub fn is_own_foreground(&self) -> bool {
        self.is_foreground(self.ours)
    }

    /// Returns true if `group` is in the foreground.
    pub fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Makes the command's group the foreground group if ours is in the foreground.
    pub fn lend(&self, group: Pid) {
        if self.is_own_foreground() {
            self.set(group);
        }
    }

    /// Makes our group the foreground group if the command's is in the foreground.
    pub fn take_back(&self, group: Pid) {
        if self.is_foreground(group) {
            self.set(self.ours);
        }
    }

    fn set(&self, group: Pid) {
        // Blocks SIGTTOU: the kernel would stop this process for a change from the background. Only in this
        // thread and only for the call, so that no command inherits the mask.
        let mut stop = SigSet::empty();
        stop.add(Masked::SIGTTOU);
        let blocked = stop.thread_block().is_ok();
        // A vanished terminal needs no foreground group.
        let _ = tcsetpgrp(&self.tty, group);
        if blocked {
            let _ = stop.thread_unblock();
        }
    }

    /// Stops our own job after a stop of the command; returns when the shell continues the job. Returns false
    /// and does nothing if no shell could continue the job.
    pub fn stop_own_job(&self) -> bool {
        has_shell() && kill_process_group(self.ours, Signal::STOP).is_ok()
    }

    /// Forwards a Ctrl-C at the command, which was meant for all processes at the terminal, even for a script
    /// that runs this process.
    pub fn forward(&self, signal: Signal) {
        let _ = kill_process_group(self.ours, signal);
    }
}

/// Returns true if a process of our session outside our group can continue us: our group is not orphaned in
/// the sense of POSIX. The kernel stops no orphaned group at Ctrl-Z, and neither does this process.
fn has_shell() -> bool {
    let Ok(session) = getsid(None) else { return false };
    let ours = getpgrp();
    let mut pid = getppid();
    while let Some(ancestor) = pid {
        if getsid(Some(ancestor)) != Ok(session) || ancestor == getpid() {
            return false;
        }
        if getpgid(Some(ancestor)) != Ok(ours) {
            return true;
        }
        pid = parent_of(ancestor);
    }
    false
}

/// SIGTSTP and SIGWINCH have the same numbers on all of Linux's architectures but MIPS.
const TERMINAL_STOP: i32 = Signal::TSTP.as_raw();
const WINDOW_CHANGE: i32 = Signal::WINCH.as_raw();

/// Receiver of the signals meant for the command.
pub struct ForwardedSignals {
    receivers: Vec<(Signal, unix::Signal)>,
}

impl ForwardedSignals {
    /// Starts to receive the signals, which no longer end this process. Ignored signals stay ignored, in the
    /// command too.
    pub fn listen() -> Result<ForwardedSignals, Failure> {
        let mut signals = ForwardedSignals { receivers: Vec::new() };
        for (signal, kind) in [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ] {
            signals.add(signal, kind)?;
        }
        Ok(signals)
    }

    /// Also receives the terminal's signals to its foreground job: Ctrl-Z stops the command instead of this
    /// process, which stops afterwards.
    pub fn listen_to_terminal(&mut self) -> Result<(), Failure> {
        for (signal, number) in [(Signal::TSTP, TERMINAL_STOP), (Signal::WINCH, WINDOW_CHANGE)] {
            self.add(signal, SignalKind::from_raw(number))?;
        }
        Ok(())
    }

    fn add(&mut self, signal: Signal, kind: SignalKind) -> Result<(), Failure> {
        self.receivers.extend(listen_unless_ignored(kind)?.map(|receiver| (signal, receiver)));
        Ok(())
    }

    /// Returns the result of `work`, or the first signal before its end.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            done = work => Ok(done),
        }
    }

    /// Returns the next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, receiver) in &mut self.receivers {
                if receiver.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
