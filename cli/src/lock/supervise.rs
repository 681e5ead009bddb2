//! Supervision of a command under a lock until the command ends or the lock is lost.
//!
//! On loss the command's whole group gets SIGTERM if there is time, then SIGKILL. Invariant: SIGKILL comes no
//! later than the lock's local deadline, before the cluster can grant the lock to the next client. There is
//! no deadline if another client took the lock away (deleted the znode or forced the release); then the group
//! gets [`GRACE_FORCED`].

use std::time::Duration;

use rowlock_client::{Client, LostReason};
use rowlock_env::time::{self, Instant};
use rustix::process::Signal;

use super::held::{Held, print_question};
use super::job::{Ended, Job, JobEvent};
use super::passed::ForwardedSignals;
use super::terminal::Terminal;
use super::warden::Warden;
use crate::exit::Failure;
use crate::print::errln;

/// Longest time between SIGTERM and SIGKILL; shorter if a quarter of the session timeout, or a third of the
/// remaining time, is shorter.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// Time to clean up after an operator took the lock away.
const GRACE_FORCED: Duration = Duration::from_secs(1);
/// Pause between checks for running children of an ended command.
const POLL: Duration = Duration::from_millis(5);

pub enum CommandEnd {
    Itself(Ended),
    /// Ended by Ctrl-C or Ctrl-\\, meant for all processes at the terminal.
    Interrupted(Signal),
    /// Ended by this process because the lock was lost, with the reason.
    Lost(String),
}

pub struct Supervised<'a, H: Held> {
    pub held: &'a H,
    pub name: &'a str,
    pub job: Job,
    /// Kills the command if this process cannot.
    pub warden: Warden,
    pub terminal: Option<Terminal>,
    pub client: &'a Client,
}

impl<H: Held> Supervised<'_, H> {
    /// Runs until the command has ended.
    pub async fn run(mut self, signals: &mut ForwardedSignals) -> Result<CommandEnd, Failure> {
        let group = self.job.group();
        self.job.ready().await?;
        if let Some(terminal) = &self.terminal {
            signals.listen_to_terminal()?;
            if terminal.is_interactive() {
                terminal.lend(group);
            }
        }
        // From here on this process may be killed or stopped at any point; nothing of the command has run
        // before.
        while let Some(until) = self.held.valid_until() {
            if self.warden.watch(group, until).await? {
                self.job.signal(Signal::CONT);
                break;
            }
        }
        let end = self.wait_for_command(signals).await;
        if end.is_ok() {
            // The command has ended; children that outlive it on purpose are left alone.
            self.warden.dismiss();
            // Only after reaping may another process get the group's number.
            self.job.ended().await?;
        }
        let had_terminal = self.terminal.as_ref().is_some_and(|terminal| terminal.is_foreground(group));
        if let Some(terminal) = self.terminal.as_ref().filter(|_| had_terminal) {
            terminal.take_back(group);
            if let Ok(CommandEnd::Itself(Ended {
                signal: Some(signal @ (Signal::INT | Signal::QUIT)), ..
            })) = end
            {
                terminal.forward(signal);
                return Ok(CommandEnd::Interrupted(signal));
            }
        }
        end
    }

    async fn wait_for_command(&mut self, signals: &mut ForwardedSignals) -> Result<CommandEnd, Failure> {
        // The deadline changes with the connection.
        let (mut states, mut questions) = (self.client.states(), self.held.asked());
        let mut has_sent_term = false;
        let mut known = None;
        let mut term_at = time::now();
        loop {
            let Some(until) = self.held.valid_until() else {
                let reason = self.held.lost().await;
                return self.end_lost(&reason).await;
            };
            self.warden.extend(until);
            if known != Some(until) {
                known = Some(until);
                // If the deadline suddenly comes closer (lost connection), leaves most of the time for a
                // reconnect.
                let grace = GRACE_MAX.min(self.client.session_timeout() / 4);
                term_at = until - grace.min(until.saturating_since(time::now()) / 3);
            }
            if !has_sent_term && time::now() >= term_at {
                has_sent_term = true;
                errln!("rowlock: {}: the lock is about to be lost, the command must end", self.name);
                self.signal(Signal::TERM);
            }
            let next = if has_sent_term { until } else { term_at };
            tokio::select! {
                biased;
                change = self.job.changed() => match change? {
                    JobEvent::Stopped(signal) => self.stopped(signal),
                    JobEvent::Ended(_) if has_sent_term => {
                        self.end_group(until).await;
                        let why = "the command was ended because the lock was about to be lost";
                        return Ok(CommandEnd::Lost(why.to_owned()));
                    }
                    // While this process was stopped, the warden or the next holder may have acted first.
                    JobEvent::Ended(ended) => match self.held.valid_until() {
                        Some(_) => return Ok(CommandEnd::Itself(ended)),
                        None => {
                            let reason = self.held.lost().await;
                            return self.end_lost(&reason).await;
                        }
                    },
                },
                _ = self.held.lost() => {}
                _ = states.next() => {}
                // `valid_until` returns the deadline of a question.
                Some(question) = questions.next() => print_question(self.name, &question),
                // The deadline has moved meanwhile, or is reached.
                () = time::sleep_until(next) => {}
                signal = signals.next() => self.signal(signal),
            }
        }
    }

    /// Ends the command and all its children after the loss of the lock.
    async fn end_lost(&mut self, reason: &LostReason) -> Result<CommandEnd, Failure> {
        if is_revoked(reason) {
            errln!("rowlock: {}: {reason}, the command must end", self.name);
            let until = time::now() + GRACE_FORCED;
            self.signal(Signal::TERM);
            self.end_group(until).await;
        } else {
            self.job.signal(Signal::KILL);
        }
        self.job.ended().await?;
        Ok(CommandEnd::Lost(reason.to_string()))
    }

    /// Waits until nothing of the command runs; kills the rest at `until`.
    async fn end_group(&mut self, until: Instant) {
        while time::now() < until {
            // An ended process counts as alive until reaped.
            let poll_until = until.min(time::now() + POLL);
            let ended = time::timeout_at(poll_until, self.job.ended()).await.is_ok();
            if ended && !self.job.is_alive() {
                return;
            }
            if ended {
                time::sleep_until(poll_until).await;
            }
        }
        self.job.signal(Signal::KILL);
    }

    /// Forwards a signal. Continues a stopped command for a signal that ends it.
    fn signal(&self, signal: Signal) {
        self.job.signal(signal);
        if matches!(signal, Signal::TERM | Signal::HUP) {
            self.job.signal(Signal::CONT);
        }
    }

    /// Handles a stopped command. At a terminal this is job control, in which this process takes part;
    /// elsewhere another process has stopped the command and will continue it, and the command keeps the
    /// lock.
    fn stopped(&self, signal: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let group = self.job.group();
        let had_terminal = terminal.is_foreground(group);
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if !had_terminal && !wants_terminal && signal != Signal::TSTP {
            return;
        }
        if !(wants_terminal && terminal.is_own_foreground()) {
            terminal.take_back(group);
            if !terminal.stop_own_job() && wants_terminal {
                // No shell will ever give the terminal to the command: act as the kernel does with a stopped
                // orphaned group.
                self.job.signal(Signal::HUP);
            }
        }
        // This process continues, perhaps much later: check the lock before the command runs on.
        if self.held.valid_until().is_some() {
            if had_terminal || wants_terminal {
                terminal.lend(group);
            }
            self.job.signal(Signal::CONT);
        }
    }
}

fn is_revoked(reason: &LostReason) -> bool {
    matches!(reason, LostReason::Deleted | LostReason::ForceReleased)
}
