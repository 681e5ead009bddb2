//! The command that runs under a lock: its process group, its end, its stops.
//!
//! The command always leads its own process group, so that losing the lock ends it and all that it started.
//! At a terminal the group becomes the foreground group (`terminal.rs`). Invariant: nothing here knows of
//! locks.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use super::processes::{OURSELVES, runs_any};
use crate::exit::{Failure, SOFTWARE};
use crate::signals::hear;

pub struct Job {
    child: Child,
    group: Pid,
    children: unix::Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit code as a shell reports it: its own, or 128 and the number of the signal.
    pub code: u8,
    pub signal: Option<Signal>,
}

impl Job {
    /// Starts `words` (program and arguments) with `env` added to our environment, and `kept_back` taken out
    /// of it.
    ///
    /// It is started through this program (`__exec`), which ties it to our process before it becomes the
    /// command. It becomes the command only after [`Job::ready`] has returned and it has been continued.
    pub fn start(
        words: &[OsString],
        env: &[(&'static str, String)],
        kept_back: &[&str],
    ) -> Result<Job, Failure> {
        let failed = |e: std::io::Error| Failure::new(SOFTWARE, format!("cannot start a process: {e}"));
        let children = hear(SignalKind::child())?;
        let mut command = Command::new(OURSELVES);
        command.arg0("rowlock").arg("__exec").arg(std::process::id().to_string()).arg("--").args(words);
        for name in kept_back {
            command.env_remove(name);
        }
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let child = command.kill_on_drop(true).process_group(0).spawn().map_err(failed)?;
        let raw = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = raw.expect("a child that was not waited for has an id");
        Ok(Job { child, group, children })
    }

    /// Waits until it is ready to become the command, or has ended, as `ended` will tell.
    pub async fn ready(&mut self) -> Result<(), Failure> {
        self.changed().await.map(|_| ())
    }

    pub fn group(&self) -> Pid {
        self.group
    }

    /// Sends `signal` to the command and all that it started. One that has ended is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Whether anything of it still runs, the command itself or what it started.
    pub fn is_alive(&self) -> bool {
        runs_any(self.group)
    }

    /// Returns once it has ended. Cancel safe.
    pub async fn ended(&mut self) -> Result<Ended, Failure> {
        wait(&mut self.child).await
    }

    /// Returns when it ends, or with the signal that has stopped it. Cancel safe.
    ///
    /// Invariant: an end is only looked at. Until [`Job::ended`] takes note of it no other process can get
    /// the number of the command's group, so the warden, which knows nothing but that, kills no other one.
    pub async fn changed(&mut self) -> Result<JobEvent, Failure> {
        while self.child.id().is_some() {
            if let Some(change) = self.change()? {
                return Ok(change);
            }
            self.children.recv().await;
        }
        self.ended().await.map(JobEvent::Ended)
    }

    /// Its end, or a stop that was not reported yet.
    fn change(&self) -> Result<Option<JobEvent>, Failure> {
        let look = |which| waitid(WaitId::Pid(self.group), which | WaitIdOptions::NOHANG);
        let ended =
            look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).map_err(|e| cannot_wait(&e.into()))?;
        if let Some(status) = ended {
            let signal = status.terminating_signal();
            let code = status.exit_status().or_else(|| signal.map(|signal| 128 + signal));
            return Ok(Some(JobEvent::Ended(Ended::new(code, signal))));
        }
        let stop = look(WaitIdOptions::STOPPED).ok().flatten().and_then(|status| status.stopping_signal());
        Ok(stop.and_then(Signal::from_named_raw).map(JobEvent::Stopped))
    }
}

/// What happened to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    Ended(Ended),
    /// It was stopped, and may be continued.
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
    async fn the_group_of_an_ended_command_is_its_own_until_the_end_is_taken_note_of() {
        for (command, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
            let children = hear(SignalKind::child()).unwrap();
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
