//! Runs the command under a hold, or holds until a signal; then releases.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rowlock_client::{Client, Owner, ReleaseError};
use rowlock_env::time;
use rustix::process::Signal;

use super::held::{Held, print_question};
use super::job::Job;
use super::once::RunRecorder;
use super::options::{self, Work};
use super::passed::ForwardedSignals;
use super::supervise::{CommandEnd, Supervised};
use super::terminal::Terminal;
use super::terraform;
use super::warden::Warden;
use crate::cluster::{LEAVING_MAX, leave};
use crate::exit::{Failure, LOST};
use crate::print::{errln, outln};

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
        CommandEnd::Lost(why) => return Err(Failure::new(LOST, format!("{name}: {why}; try again"))),
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
            reason = held.lost() => return CommandEnd::Lost(reason.to_string()),
            Some(question) = questions.next() => print_question(name, &question),
        }
    }
}
