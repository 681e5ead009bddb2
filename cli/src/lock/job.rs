//! Process of the command under a lock: process group, end, stops.
//!
//! The command always leads its own process group: losing the lock ends the command with all its children. At
//! a terminal the group becomes the foreground group (`terminal.rs`). Invariant: nothing here knows of locks.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use super::processes::{SELF_EXE, runs_any};
use crate::exit::{Failure, SOFTWARE};
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
}
