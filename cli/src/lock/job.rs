//! Process of the command under a lock: process group, end, stops.
//!
//! The command always leads its own process group: losing the lock ends the command with all its children. At
//! a terminal the group becomes the foreground group (`terminal.rs`). Invariant: nothing here knows of locks.
//!
//! `rowlock __exec` is the first stage of the command. The process ties its life to the `rowlock lock` that
//! started it, stops itself until that process has instructed the warden and continues it, and then becomes
//! the command. A `rowlock lock` that is killed or stopped never leaves a command running without a lock.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, ExitCode, ExitStatus};

use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, test_kill_process_group, waitid,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Failure, LOST, NOT_EXECUTABLE, NOT_FOUND, SOFTWARE, USAGE};
use crate::signals::listen;

pub struct Job {
    child: Child,
    group: Pid,
    children: unix::Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code in the convention of shells: the command's own, or 128 plus the number of the signal.
    pub code: u8,
    pub signal: Option<Signal>,
}

impl Job {
    /// Starts `words` (program and arguments) in our environment with `env` added and the variables
    /// `withheld` removed.
    ///
    /// This program (`__exec`) is started first, ties the process to ours, and becomes the command only after
    /// [`Job::ready`] has returned and SIGCONT was sent.
    pub fn start(
        words: &[OsString],
        env: &[(&'static str, String)],
        withheld: &[&str],
    ) -> Result<Job, Failure> {
        let failed = |e: std::io::Error| Failure::new(SOFTWARE, format!("cannot start a process: {e}"));
        let children = listen(SignalKind::child())?;
        let mut command = Command::new(SELF_EXE);
        command.arg0("rowlock").arg("__exec").arg(std::process::id().to_string()).arg("--").args(words);
        for name in withheld {
            command.env_remove(name);
        }
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let child = command.kill_on_drop(true).process_group(0).spawn().map_err(failed)?;
        let raw = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = raw.expect("a child that was not waited for has an id");
        Ok(Job { child, group, children })
    }

    /// Waits until the process is ready to become the command, or has ended; [`Job::ended`] returns the end.
    pub async fn ready(&mut self) -> Result<(), Failure> {
        self.changed().await.map(|_| ())
    }

    pub fn group(&self) -> Pid {
        self.group
    }

    /// Sends `signal` to the command and all its children. Ignores ended processes.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Returns true while the command or any of its children runs.
    pub fn is_alive(&self) -> bool {
        runs_any(self.group)
    }

    /// Waits for the end of the command and reaps the process. Cancel safe.
    pub async fn ended(&mut self) -> Result<Ended, Failure> {
        wait(&mut self.child).await
    }

    /// Waits for the end of the command, or for the signal that stops the command. Cancel safe.
    ///
    /// Invariant: this function does not reap an ended process. Until [`Job::ended`] reaps the process, no
    /// other process can get its group number, so the warden, which knows only the number, kills no foreign
    /// process.
    pub async fn changed(&mut self) -> Result<JobEvent, Failure> {
        while self.child.id().is_some() {
            if let Some(change) = self.change()? {
                return Ok(change);
            }
            self.children.recv().await;
        }
        self.ended().await.map(JobEvent::Ended)
    }

    /// Returns the end, or a stop not reported before.
    fn change(&self) -> Result<Option<JobEvent>, Failure> {
        let wait_for = |which| waitid(WaitId::Pid(self.group), which | WaitIdOptions::NOHANG);
        let ended =
            wait_for(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map_err(|e| cannot_wait(&e.into()))?;
        if let Some(status) = ended {
            let signal = status.terminating_signal();
            let code = status.exit_status().or_else(|| signal.map(|signal| 128 + signal));
            return Ok(Some(JobEvent::Ended(Ended::new(code, signal))));
        }
        let stop =
            wait_for(WaitIdOptions::STOPPED).ok().flatten().and_then(|status| status.stopping_signal());
        Ok(stop.and_then(Signal::from_named_raw).map(JobEvent::Stopped))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    Ended(Ended),
    /// Stopped by this signal; may be continued.
    Stopped(Signal),
}

async fn wait(child: &mut Child) -> Result<Ended, Failure> {
    let status = child.wait().await;
    status.map(ended).map_err(|e| cannot_wait(&e))
}

fn cannot_wait(why: &std::io::Error) -> Failure {
    Failure::new(SOFTWARE, format!("cannot wait for the command: {why}"))
}

fn ended(status: ExitStatus) -> Ended {
    Ended::new(status.code().or_else(|| status.signal().map(|signal| 128 + signal)), status.signal())
}

impl Ended {
    fn new(code: Option<i32>, signal: Option<i32>) -> Ended {
        Ended {
            code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX),
            signal: signal.and_then(Signal::from_named_raw),
        }
    }
}

/// The running program, even after an update has replaced or removed the file: a command may wait for hours.
pub const SELF_EXE: &str = "/proc/self/exe";

#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    /// True for a zombie: ended, but not reaped by its parent.
    ended: bool,
    parent: Option<Pid>,
    group: Option<Pid>,
}

/// Returns true if any process of the group runs. A zombie does not run (the first process of a container
/// often never reaps its children).
pub fn runs_any(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    // Without a list of processes, assume a running one.
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| entry(Pid::from_raw(id)?)).any(|entry| entry.group == Some(group) && !entry.ended)
}

pub fn parent_of(pid: Pid) -> Option<Pid> {
    entry(pid)?.parent
}

fn entry(pid: Pid) -> Option<ProcessStat> {
    let stat = rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut text = String::new();
    File::from(stat.ok()?).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(stat: &str) -> Option<ProcessStat> {
    // The name in parentheses may contain anything, even parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let ended = matches!(fields.next()?, "Z" | "X");
    let mut id = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
    Some(ProcessStat { ended, parent: id()?, group: id()? })
}

/// Become a command that ends with its parent
#[derive(clap::Args)]
pub struct Exec {
    /// Process id of the starting `rowlock lock`
    parent: i32,
    /// Command with its arguments
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

impl Exec {
    /// Replaces this process by the command. Returns only if the command cannot be executed.
    pub fn run(self) -> Result<ExitCode, Failure> {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot be tied to process {}: {e}", self.parent)))?;
        // The parent may have ended between the start of this process and the line above.
        if getppid() != Pid::from_raw(self.parent) {
            return Err(Failure::new(LOST, "the lock's process has ended: the command is not started"));
        }
        let Some((program, arguments)) = self.words.split_first() else {
            return Err(Failure::new(USAGE, "no command is given"));
        };
        kill_process(getpid(), Signal::STOP)
            .map_err(|e| Failure::new(SOFTWARE, format!("cannot wait for process {}: {e}", self.parent)))?;
        let e = process::Command::new(program).args(arguments).exec();
        let program = program.to_string_lossy();
        Err(match e.kind() {
            ErrorKind::NotFound => Failure::new(NOT_FOUND, format!("{program}: no such command")),
            _ => Failure::new(NOT_EXECUTABLE, format!("{program} cannot be executed: {e}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process_group;

    use super::*;

    #[tokio::test]
    async fn an_ended_command_keeps_its_group_number_until_reaped() {
        for (command, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
            let children = listen(SignalKind::child()).unwrap();
            let child = Command::new("sh").args(["-c", command]).process_group(0).spawn().unwrap();
            let group = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
            let mut job = Job { child, group, children };
            let JobEvent::Ended(seen) = job.changed().await.unwrap() else { panic!("nothing stops it") };
            assert_eq!(seen.code, code);
            assert!(test_kill_process_group(group).is_ok(), "its number is not free yet");
            assert_eq!(job.ended().await.unwrap(), seen);
            assert!(test_kill_process_group(group).is_err());
            assert_eq!(job.changed().await.unwrap(), JobEvent::Ended(seen));
        }
    }

    #[test]
    fn fields_follow_any_process_name() {
        let pid = Pid::from_raw;
        let read = parse("7 (a) b (c) S 3 5 7 0");
        assert_eq!(read, Some(ProcessStat { ended: false, parent: pid(3), group: pid(5) }));
        assert_eq!(parse("7 (sh) Z 0 5 7 0"), Some(ProcessStat { ended: true, parent: None, group: pid(5) }));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn own_group_runs() {
        assert!(runs_any(rustix::process::getpgrp()));
    }
}
