//! Runs the command under a hold (a lock, permits of a semaphore, a leadership), or holds until a signal;
//! then releases. Supervises the command until the command ends or the hold is lost.
//!
//! On loss the command's whole group gets SIGTERM if there is time, then SIGKILL. Invariant: SIGKILL comes no
//! later than the lock's local deadline, before the cluster can grant the lock to the next client. There is
//! no deadline if another client took the lock away (deleted the znode or forced the release); then the group
//! gets [`GRACE_FORCED`].

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rowlock_client::{
    Client, FencingToken, Guard, Instant, Leadership, LostReason, Owner, Permits, Question, Questions,
    ReleaseError, WaitStats,
};
use rowlock_env::time;
use rustix::process::Signal;

use super::job::{Ended, Job, JobEvent};
use super::once::RunRecorder;
use super::options::{self, Work};
use super::terminal::ForwardedSignals;
use super::terminal::Terminal;
use super::terraform;
use super::warden::Warden;
use crate::cluster::{LEAVING_MAX, leave};
use crate::exit::{Failure, LOST};
use crate::moment::span;
use crate::print::{errln, outln, safe};

/// Exit of this process after the session is closed.
#[derive(Clone, Copy, Debug)]
pub enum ProcessEnd {
    Code(u8),
    /// Dies of the keyboard's signal that ended the command: a calling script stops only if this process dies
    /// of the same signal.
    Signal(Signal),
}

impl ProcessEnd {
    /// Returns the exit code in the convention of shells.
    pub fn code(self) -> u8 {
        match self {
            ProcessEnd::Code(code) => code,
            ProcessEnd::Signal(signal) => shell_code(signal),
        }
    }

    /// Ends the process by the signal, or returns the exit code.
    pub fn exit(self) -> ExitCode {
        let signal = match self {
            ProcessEnd::Code(code) => return ExitCode::from(code),
            ProcessEnd::Signal(signal) => signal,
        };
        // This process handles the signal; a new program image does not.
        let kill = format!("kill -{} $$", signal.as_raw());
        let _ = Command::new("/bin/sh").args(["-c", &kill]).exec();
        ExitCode::from(shell_code(signal))
    }
}

/// Returns a shell's exit code for a command ended by `signal`.
pub fn shell_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

pub struct RunContext<'a> {
    pub client: &'a Client,
    pub name: &'a str,
    pub work: &'a Work,
    /// Program and arguments to run. Empty: only hold.
    pub words: Vec<OsString>,
    /// Owner of the lock for deadlock detection.
    pub owner: Owner,
    pub cluster_flags: Vec<String>,
    /// Lets the warden end the session if this process dies, so that the next client is granted the lock as
    /// soon as the command is gone.
    pub ends_session_on_death: bool,
    pub mode: CommandMode<'a>,
}

/// Additional services for a command under a lock.
#[derive(Clone, Copy)]
pub enum CommandMode<'a> {
    Plain,
    /// Records start and end of the run.
    Once(&'a RunRecorder),
    /// Serves the command's requests on loopback.
    Terraform {
        /// True to serve requests for the state too.
        keeps_state: bool,
    },
}

/// Runs the command under `held` and releases; the exit code is the command's.
pub async fn run<H: Held>(
    held: H,
    context: RunContext<'_>,
    signals: &mut ForwardedSignals,
) -> Result<ProcessEnd, Failure> {
    let RunContext { client, name, work, words, owner, cluster_flags, ends_session_on_death, mode } = context;
    let mut environment = environment_of(client, &held, name, owner);
    let mut run = None;
    match mode {
        CommandMode::Plain => {}
        CommandMode::Once(recorder) => run = Some((recorder, recorder.begin(client, &held).await)),
        CommandMode::Terraform { keeps_state } => {
            environment.extend(terraform::serve(client, held.key(), keeps_state).await?);
        }
    }
    let end = if words.is_empty() {
        hold(&held, name, signals).await
    } else {
        // Starts the warden first: the command must never run without one.
        let mut warden = Warden::start(&cluster_flags)?;
        if ends_session_on_death {
            client.session_ticket().iter().for_each(|ticket| warden.set_session(ticket));
        }
        // A command under the lock need not know the credentials.
        let withheld = if work.pass_auth { &[][..] } else { &CREDENTIALS };
        let job = Job::start(&words, &environment, withheld)?;
        let terminal = Terminal::controlling();
        Supervised { held: &held, name, job, warden, terminal, client }.run(signals).await?
    };
    let over = match end {
        CommandEnd::Itself(ended) => ProcessEnd::Code(ended.code),
        CommandEnd::Interrupted(signal) => ProcessEnd::Signal(signal),
        CommandEnd::Lost(why) => return Err(Failure::new(LOST, format!("{name}: {why}"))),
    };
    if let Some((recorder, run)) = run
        && !recorder.end(client, run, over.code()).await
    {
        work.report(&format!("{name}: the command failed, the next attempt runs it"));
        // Dropping the hold would release the lock, and the interval would count. The end of the session
        // frees the lock.
        std::mem::forget(held);
        return Ok(over);
    }
    // The end of the session leaves with the release: this process does nothing more in either.
    let release = time::timeout(LEAVING_MAX, held.release());
    let (released, ()) = tokio::join!(biased; release, leave(client));
    match released.unwrap_or(Err(ReleaseError::Unknown)) {
        Ok(()) => work.report(&format!("released {name}")),
        Err(e @ ReleaseError::NotHeld) => {
            return Err(Failure::new(LOST, format!("{name}: {e} when the command ended")));
        }
        // The command had the lock to the end: keep its exit code.
        Err(_) => errln!(
            "rowlock: {name}: no server confirmed the release; the lock is free at the end of the session"
        ),
    }
    Ok(over)
}

/// Variables with secrets read by our programs.
const CREDENTIALS: [&str; 3] = ["ROWLOCK_AUTH", "ROWLOCK_TOKEN", "ROWLOCK_FROM_AUTH"];

/// Returns the environment variables for a command under a lock.
fn environment_of<H: Held>(
    client: &Client,
    held: &H,
    name: &str,
    owner: Owner,
) -> Vec<(&'static str, String)> {
    vec![
        ("ROWLOCK_LOCK_NAME", name.to_owned()),
        ("ROWLOCK_LOCK_KEY", held.key()),
        ("ROWLOCK_LOCK_TOKEN", held.token().to_string()),
        ("ROWLOCK_SESSION_ID", client.session_id().to_string()),
        ("ROWLOCK_LOCK_HELD", "true".to_owned()),
        options::owner_in_environment(owner, &held.key()),
    ]
}

/// Holds the lock for a process that reads our output.
async fn hold<H: Held>(held: &H, name: &str, signals: &mut ForwardedSignals) -> CommandEnd {
    outln!("{} {}", held.key(), held.token());
    let mut questions = held.asked();
    loop {
        tokio::select! {
            _ = signals.next() => return CommandEnd::Itself(super::job::Ended { code: 0, signal: None }),
            reason = held.lost() => return CommandEnd::Lost(with_remedy(reason.to_string(), reason)),
            Some(question) = questions.next() => print_question(name, &question),
        }
    }
}

/// Lock, permits or leadership, all of which can be lost.
pub trait Held {
    /// Returns the path of the own queue znode.
    fn key(&self) -> String;
    /// Returns the fencing token, larger than the token of every earlier holder.
    fn token(&self) -> FencingToken;
    fn wait_stats(&self) -> WaitStats;
    fn valid_until(&self) -> Option<Instant>;
    fn lost(&self) -> impl Future<Output = LostReason>;
    /// Returns the reason for which the hold ends at [`Held::valid_until`].
    fn next_loss(&self) -> LostReason;
    fn asked(&self) -> Questions;
    fn release(self) -> impl Future<Output = Result<(), ReleaseError>>;
}

/// All implementations wrap a guard; only the release differs.
macro_rules! held {
    ($($kind:ty),*) => {$(
        impl Held for $kind {
            fn key(&self) -> String {
                self.path().to_owned()
            }

            fn token(&self) -> FencingToken {
                Guard::token(self)
            }

            fn wait_stats(&self) -> WaitStats {
                Guard::wait_stats(self)
            }

            fn valid_until(&self) -> Option<Instant> {
                Guard::valid_until(self)
            }

            fn lost(&self) -> impl Future<Output = LostReason> {
                Guard::lost(self)
            }

            fn next_loss(&self) -> LostReason {
                self.loss().next_reason()
            }

            fn asked(&self) -> Questions {
                Guard::asked(self)
            }

            fn release(self) -> impl Future<Output = Result<(), ReleaseError>> {
                <$kind>::release(self)
            }
        }
    )*};
}

held!(Guard, Permits, Leadership);

/// Prints a question from another client to stderr.
fn print_question(name: &str, question: &Question) {
    let (by, reason) = (safe(&question.by), safe(&question.reason));
    match question.deadline {
        None => errln!("rowlock: {name}: {by} asks for the lock: {reason}"),
        Some(deadline) => {
            let left_ms = deadline.saturating_since(time::now()).as_millis();
            let left = span(i64::try_from(left_ms).unwrap_or(i64::MAX));
            errln!("rowlock: {name}: {by} asks for the lock: {reason}; it is lost in {left}");
        }
    }
}

/// Longest time between SIGTERM and SIGKILL; shorter if a quarter of the session timeout, or a third of the
/// remaining time, is shorter.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// Time to clean up after an operator took the lock away.
const GRACE_FORCED: Duration = Duration::from_secs(1);
/// Pause between checks for running children of an ended command.
const POLL: Duration = Duration::from_millis(5);

enum CommandEnd {
    Itself(Ended),
    /// Ended by Ctrl-C or Ctrl-\\, meant for all processes at the terminal.
    Interrupted(Signal),
    /// Ended by this process because the lock was lost, with the reason.
    Lost(String),
}

struct Supervised<'a, H: Held> {
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
        let (mut has_sent_term, mut reason) = (false, LostReason::Unreachable);
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
                reason = self.held.next_loss();
                errln!("rowlock: {}: the command must end before {}", self.name, near_end(reason));
                self.signal(Signal::TERM);
            }
            let next = if has_sent_term { until } else { term_at };
            tokio::select! {
                biased;
                change = self.job.changed() => match change? {
                    JobEvent::Stopped(signal) => self.stopped(signal),
                    JobEvent::Ended(_) if has_sent_term => {
                        self.end_group(until).await;
                        let why = format!("the command was ended before {}", near_end(reason));
                        return Ok(CommandEnd::Lost(with_remedy(why, reason)));
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
        Ok(CommandEnd::Lost(with_remedy(reason.to_string(), *reason)))
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

/// Names the end of a hold that is a moment away.
fn near_end(reason: LostReason) -> &'static str {
    match reason {
        LostReason::MaxHold => "the end of --max-hold",
        LostReason::Asked => "the deadline of another client's request",
        _ => "the loss of the lock",
    }
}

fn with_remedy(problem: String, reason: LostReason) -> String {
    let remedy = match reason {
        LostReason::MaxHold => "raise --max-hold if the command needs longer",
        _ => "try again",
    };
    format!("{problem}; {remedy}")
}

fn is_revoked(reason: &LostReason) -> bool {
    matches!(reason, LostReason::Deleted | LostReason::ForceReleased)
}
