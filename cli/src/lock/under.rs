//! RunNotes the command under what is held, or holds it until a signal; then gives it back.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rowlock_client::{Client, Owner, ReleaseError};
use rowlock_env::time;
use rustix::process::Signal;

use super::held::{Held, tell_asked};
use super::job::Job;
use super::once::RunNotes;
use super::options::{self, Work};
use super::passed::Passed;
use super::supervise::{End, Supervised};
use super::terminal::Terminal;
use super::terraform;
use super::warden::Warden;
use crate::cluster::LEAVING_MAX;
use crate::exit::{Failure, LOST};
use crate::print::{errln, outln};

/// How this process ends, once the session is closed.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    Code(u8),
    /// By the signal of the keyboard that ended the command: a script that runs us stops only if it sees that
    /// we died of it, too.
    Signal(Signal),
}

impl Over {
    /// What a shell reports of it.
    pub fn code(self) -> u8 {
        match self {
            Over::Code(code) => code,
            Over::Signal(signal) => shell_code(signal),
        }
    }

    /// Ends the process by the signal, or gives the code to end with.
    pub fn exit(self) -> ExitCode {
        let signal = match self {
            Over::Code(code) => return ExitCode::from(code),
            Over::Signal(signal) => signal,
        };
        // We handle the signal ourselves; a program that has just been started does not.
        let kill = format!("kill -{} $$", signal.as_raw());
        let _ = Command::new("/bin/sh").args(["-c", &kill]).exec();
        ExitCode::from(shell_code(signal))
    }
}

/// The exit code that a shell reports for a command that this signal ended.
pub fn shell_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// The setting in which a command runs.
pub struct Setting<'a> {
    pub client: &'a Client,
    /// The lock, as the user named it.
    pub name: &'a str,
    pub work: &'a Work,
    /// Program and arguments to run. Empty: just hold.
    pub words: Vec<OsString>,
    /// In whose name we asked.
    pub owner: Owner,
    /// The flags that say where the cluster is, and how to connect.
    pub way: Vec<String>,
    /// If we die under the lock, the next client may get it as soon as the command is gone.
    pub may_be_followed_at_once: bool,
    /// What goes on around the command.
    pub around: Around<'a>,
}

/// What is done beside a command that runs under a lock.
#[derive(Clone, Copy)]
pub enum Around<'a> {
    Nothing,
    /// Its begin and its end are noted.
    Once(&'a RunNotes),
    /// Its requests are answered on loopback.
    Terraform {
        /// Also those for the state.
        keeps_state: bool,
    },
}

/// Runs the work under `held`; the exit code is the command's.
pub async fn run<H: Held>(held: H, setting: Setting<'_>, passed: &mut Passed) -> Result<Over, Failure> {
    let Setting { client, name, work, words, owner, way, may_be_followed_at_once, around } = setting;
    let mut environment = environment_of(client, &held, name, owner);
    let mut run = None;
    match around {
        Around::Nothing => {}
        Around::Once(runs) => run = Some((runs, runs.begin(client, &held).await)),
        Around::Terraform { keeps_state } => {
            environment.extend(terraform::serve(client, held.key(), keeps_state).await?);
        }
    }
    let end = if words.is_empty() {
        hold(&held, name, passed).await
    } else {
        // The warden first: from the command's first moment on it must be there.
        let mut warden = Warden::start(&way)?;
        if may_be_followed_at_once {
            client.session_ticket().iter().for_each(|ticket| warden.give_back(ticket));
        }
        // Who may take the lock is not therefore to be known to all that runs under it.
        let kept_back = if work.pass_auth { &[][..] } else { &CREDENTIALS };
        let job = Job::start(&words, &environment, kept_back)?;
        let terminal = Terminal::controlling();
        Supervised { held: &held, name, job, warden, terminal, client }.run(passed).await?
    };
    let over = match end {
        End::Itself(ended) => Over::Code(ended.code),
        End::Interrupted(signal) => Over::Signal(signal),
        End::Lost(why) => return Err(Failure::new(LOST, format!("{name}: {why}; try again"))),
    };
    if let Some((runs, run)) = run
        && !runs.end(client, run, over.code()).await
    {
        work.say(&format!("{name}: the command failed, the next attempt runs it"));
        // A drop would release it, and the interval would count. The end of the session frees it.
        std::mem::forget(held);
        return Ok(over);
    }
    let released = time::timeout(LEAVING_MAX, held.release()).await;
    match released.unwrap_or(Err(ReleaseError::Unknown)) {
        Ok(()) => work.say(&format!("released {name}")),
        Err(e @ ReleaseError::NotHeld) => {
            return Err(Failure::new(LOST, format!("{name}: {e} when the command ended")));
        }
        // The command had its lock to the end, so its code stands.
        Err(_) => errln!(
            "rowlock: {name}: no server says that it was given back; it is free when the session has ended"
        ),
    }
    Ok(over)
}

/// Variables with secrets that programs of ours read.
const CREDENTIALS: [&str; 3] = ["ROWLOCK_AUTH", "ROWLOCK_TOKEN", "ROWLOCK_FROM_AUTH"];

/// What runs under a lock finds this in its environment.
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

/// Holds it for a process that reads our output.
async fn hold<H: Held>(held: &H, name: &str, passed: &mut Passed) -> End {
    outln!("{} {}", held.key(), held.token());
    let mut questions = held.asked();
    loop {
        tokio::select! {
            _ = passed.next() => return End::Itself(super::job::Ended { code: 0, signal: None }),
            reason = held.lost() => return End::Lost(reason.to_string()),
            Some(question) = questions.next() => tell_asked(name, &question),
        }
    }
}
