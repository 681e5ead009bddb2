//! Waits for a command that runs under a lock, until it ends by itself or the lock is lost.
//!
//! On loss the command's whole group gets SIGTERM while there is time, and SIGKILL when there is none.
//! Invariant: the SIGKILL comes at the lock's local deadline at the latest, which is before the cluster can
//! grant the lock to the next. There is no deadline where another client took the lock away (it deleted the
//! znode or forced the release); then the group gets [`GRACE_FORCED`].

use std::time::Duration;

use rowlock_client::{Client, LostReason};
use rowlock_env::time::{self, Instant};
use rustix::process::Signal;

use super::held::{Held, tell_asked};
use super::job::{Ended, Job, JobEvent};
use super::passed::Passed;
use super::terminal::Terminal;
use super::warden::Warden;
use crate::exit::Failure;
use crate::print::errln;

/// A command that is asked to end gets this long; less if a quarter of the session timeout, or a third of
/// what is left, is less.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// A command whose lock was taken away by a person gets this long to put its things in order.
const GRACE_FORCED: Duration = Duration::from_secs(1);
/// How often to check whether the children of an ended command have ended.
const POLL: Duration = Duration::from_millis(5);

pub enum End {
    Itself(Ended),
    /// By Ctrl-C or Ctrl-\\, which are meant for all processes at the terminal.
    Interrupted(Signal),
    /// We ended it, because the lock was lost for this reason.
    Lost(String),
}

/// A command that runs under `held`.
pub struct Supervised<'a, H: Held> {
    /// What it runs under.
    pub held: &'a H,
    pub name: &'a str,
    pub job: Job,
    /// Kills it if we cannot.
    pub warden: Warden,
    pub terminal: Option<Terminal>,
    pub client: &'a Client,
}

impl<H: Held> Supervised<'_, H> {
    /// Runs until the command has ended.
    pub async fn run(mut self, passed: &mut Passed) -> Result<End, Failure> {
        let group = self.job.group();
        self.job.ready().await?;
        if let Some(terminal) = &self.terminal {
            passed.listen_to_terminal()?;
            if terminal.is_ours_alone() {
                terminal.lend(group);
            }
        }
        // From here on we may be killed or stopped at any point; before, nothing of the command has run.
        while let Some(until) = self.held.valid_until() {
            if self.warden.watch(group, until).await? {
                self.job.signal(Signal::CONT);
                break;
            }
        }
        let end = self.wait_for_command(passed).await;
        if end.is_ok() {
            // The command itself has ended, and nothing that outlives it on purpose is our business.
            self.warden.dismiss();
            // Only now may another process get its number.
            self.job.ended().await?;
        }
        let had_terminal = self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(group));
        if let Some(terminal) = self.terminal.as_ref().filter(|_| had_terminal) {
            terminal.take_back(group);
            if let Ok(End::Itself(Ended { signal: Some(signal @ (Signal::INT | Signal::QUIT)), .. })) = end {
                terminal.pass_on(signal);
                return Ok(End::Interrupted(signal));
            }
        }
        end
    }

    async fn wait_for_command(&mut self, passed: &mut Passed) -> Result<End, Failure> {
        // What changes with the connection is the deadline.
        let (mut states, mut questions) = (self.client.states(), self.held.asked());
        let mut asked_to_end = false;
        let mut known = None;
        let mut ask_at = time::now();
        loop {
            let Some(until) = self.held.valid_until() else {
                let reason = self.held.lost().await;
                return self.end_lost(&reason).await;
            };
            self.warden.extend(until);
            if known != Some(until) {
                known = Some(until);
                // A deadline that comes suddenly closer (the connection broke) leaves most of the time to
                // mend that.
                let grace = GRACE_MAX.min(self.client.session_timeout() / 4);
                ask_at = until - grace.min(until.saturating_since(time::now()) / 3);
            }
            if !asked_to_end && time::now() >= ask_at {
                asked_to_end = true;
                errln!("rowlock: {}: the lock is about to be lost, the command must end", self.name);
                self.signal(Signal::TERM);
            }
            let next = if asked_to_end { until } else { ask_at };
            tokio::select! {
                biased;
                change = self.job.changed() => match change? {
                    JobEvent::Stopped(signal) => self.stopped(signal),
                    JobEvent::Ended(_) if asked_to_end => {
                        self.end_group(until).await;
                        let why = "the command was ended because the lock was about to be lost";
                        return Ok(End::Lost(why.to_owned()));
                    }
                    // While we were stopped the warden, or the next holder, may have been faster.
                    JobEvent::Ended(ended) => match self.held.valid_until() {
                        Some(_) => return Ok(End::Itself(ended)),
                        None => {
                            let reason = self.held.lost().await;
                            return self.end_lost(&reason).await;
                        }
                    },
                },
                _ = self.held.lost() => {}
                _ = states.next() => {}
                // A deadline comes back by `valid_until`.
                Some(question) = questions.next() => tell_asked(self.name, &question),
                // The deadline has moved on meanwhile, or it is there.
                () = time::sleep_until(next) => {}
                signal = passed.next() => self.signal(signal),
            }
        }
    }

    /// The lock is lost: so must the command be, and all that it started.
    async fn end_lost(&mut self, reason: &LostReason) -> Result<End, Failure> {
        if by_a_person(reason) {
            errln!("rowlock: {}: {reason}, the command must end", self.name);
            let until = time::now() + GRACE_FORCED;
            self.signal(Signal::TERM);
            self.end_group(until).await;
        } else {
            self.job.signal(Signal::KILL);
        }
        self.job.ended().await?;
        Ok(End::Lost(reason.to_string()))
    }

    /// Waits until nothing of the command runs any more; kills what is left at `until`.
    async fn end_group(&mut self, until: Instant) {
        while time::now() < until {
            // Its end must be taken note of, or it counts as alive.
            let look_until = until.min(time::now() + POLL);
            let ended = time::timeout_at(look_until, self.job.ended()).await.is_ok();
            if ended && !self.job.is_alive() {
                return;
            }
            if ended {
                time::sleep_until(look_until).await;
            }
        }
        self.job.signal(Signal::KILL);
    }

    /// Passes a signal on. A stopped command is continued for a signal that asks it to end.
    fn signal(&self, signal: Signal) {
        self.job.signal(signal);
        if matches!(signal, Signal::TERM | Signal::HUP) {
            self.job.signal(Signal::CONT);
        }
    }

    /// The command is stopped. At a terminal that is job control, and we take part in it; elsewhere another
    /// process has stopped the command and will continue it, and it keeps the lock meanwhile.
    fn stopped(&self, signal: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let group = self.job.group();
        let had_it = terminal.is_of(group);
        let wants_it = matches!(signal, Signal::TTIN | Signal::TTOU);
        if !had_it && !wants_it && signal != Signal::TSTP {
            return;
        }
        if !(wants_it && terminal.is_ours()) {
            terminal.take_back(group);
            if !terminal.stop_with_it() && wants_it {
                // No shell will ever give it the terminal: do what the kernel does to a stopped group without
                // a shell.
                self.job.signal(Signal::HUP);
            }
        }
        // We continue, perhaps much later: check the lock before the command does anything.
        if self.held.valid_until().is_some() {
            if had_it || wants_it {
                terminal.lend(group);
            }
            self.job.signal(Signal::CONT);
        }
    }
}

fn by_a_person(reason: &LostReason) -> bool {
    matches!(reason, LostReason::Deleted | LostReason::ForceReleased)
}
