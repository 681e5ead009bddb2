//! The controlling terminal, which must be lent to a command in its own process group.
//!
//! A terminal has one foreground group. Other groups are stopped when they read from it, and do not hear
//! Ctrl-C. So this process does what a shell does: it lends the terminal to the command's group, takes it
//! back when the command stops or ends, and stops with it, so that Ctrl-Z, `fg` and `bg` work on the whole.
//! After `fg` the lock is checked before the command continues.
//!
//! With stdin and stdout at the terminal it is lent from the start. In a pipeline it is lent when the command
//! needs it (the kernel stops a background group that does), as a pager at the other end may need it too.

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_process_group};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

use super::processes::parent_of;

/// The controlling terminal, and our own group.
pub struct Terminal {
    tty: OwnedFd,
    ours: Pid,
}

impl Terminal {
    /// None: we run under a service manager, cron, CI.
    pub fn controlling() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Terminal { tty, ours: getpgrp() })
    }

    /// No other process of our job is likely to need it.
    pub fn is_ours_alone(&self) -> bool {
        isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout()) && self.is_ours()
    }

    /// Whether we are in the foreground.
    pub fn is_ours(&self) -> bool {
        self.is_of(self.ours)
    }

    /// Whether that group is in the foreground.
    pub fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Makes the command's group the foreground group, if ours is.
    pub fn lend(&self, group: Pid) {
        if self.is_ours() {
            self.set(group);
        }
    }

    /// Makes ours the foreground group, if the command's is.
    pub fn take_back(&self, group: Pid) {
        if self.is_of(group) {
            self.set(self.ours);
        }
    }

    fn set(&self, group: Pid) {
        // Without this the kernel would stop us for reaching for the terminal from the background. Only this
        // thread's mask, and only for the call, so that no command inherits it.
        let mut stop = SigSet::empty();
        stop.add(Masked::SIGTTOU);
        let blocked = stop.thread_block().is_ok();
        // A terminal that is gone needs no foreground.
        let _ = tcsetpgrp(&self.tty, group);
        if blocked {
            let _ = stop.thread_unblock();
        }
    }

    /// Stops our own job, as the command has been stopped; returns when the shell continues it. False: there
    /// is no shell that could, so nothing was done.
    pub fn stop_with_it(&self) -> bool {
        has_shell() && kill_process_group(self.ours, Signal::STOP).is_ok()
    }

    /// A Ctrl-C at the command was meant for all processes at the terminal, also for a script that runs us.
    pub fn pass_on(&self, signal: Signal) {
        let _ = kill_process_group(self.ours, signal);
    }
}

/// Whether a process of our session outside our group can continue us, that is, our group is not orphaned in
/// the sense of POSIX. The kernel stops no orphaned groups at Ctrl-Z, and neither do we.
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
