//! `rowlock lock`: a command under a lock, in the manner of flock(1).
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, the lock's deadline is watched:
//! the command is asked to end (SIGTERM) when the deadline comes near, and ended (SIGKILL) when it is there, which is
//! before the cluster grants the lock to the next.

pub mod exec;
mod job;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Client, Error, Guard, Mutex, ReleaseError};
use rowlock_env::time;
use rustix::process::Signal;

use crate::cluster::{Cluster, failed, seconds};
use crate::exit::{Failure, LOST, REFUSED};
use job::{Job, Passed, from_keyboard};

/// A command that is asked to end gets this long, or a quarter of the session timeout if that is less.
const GRACE_MAX: Duration = Duration::from_secs(5);

/// Run a command under a lock; without one, hold the lock until a signal
#[derive(clap::Args)]
pub struct Lock {
    /// Name of the lock; a name with a leading slash is the path of its znode
    name: String,
    /// Do not wait: a busy lock ends with the code of -E
    #[arg(short, long, conflicts_with = "timeout")]
    nonblock: bool,
    /// Wait at most so many seconds
    #[arg(short = 'w', long, value_name = "SEC", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Exit code for a busy lock with -n or -w
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    conflict_exit_code: u8,
    /// Run this with `sh -c`
    #[arg(short = 'c', long, value_name = "COMMAND", conflicts_with = "words")]
    shell: Option<OsString>,
    /// Say on stderr what happens
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    cluster: Cluster,
    /// Program and arguments
    #[arg(last = true, value_name = "CMD")]
    words: Vec<OsString>,
}

/// How the command ended.
enum End {
    /// By itself, with this code.
    Code(u8),
    /// We ended it, because the lock was lost for this reason.
    Lost(String),
}

impl Lock {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut passed = Passed::listen()?;
        let client = self.cluster.connect().await?;
        let acquired = tokio::select! {
            acquired = self.acquire(&client) => acquired,
            signal = passed.next() => {
                // The queue is left with the session.
                leave(&client).await;
                return Ok(ExitCode::from(shell_code(signal)));
            }
        };
        let ended = match acquired {
            Ok(Some(guard)) => self.hold(&client, guard, &mut passed).await,
            Ok(None) => Ok(self.conflict_exit_code),
            Err(e) => Err(e),
        };
        leave(&client).await;
        ended.map(ExitCode::from)
    }

    async fn acquire(&self, client: &Client) -> Result<Option<Guard>, Failure> {
        let mutex = self.mutex(client);
        let asked = match (self.nonblock, self.timeout) {
            (true, _) => mutex.try_lock().await,
            (false, Some(patience)) => mutex.lock_timeout(patience).await.map(Some),
            (false, None) => mutex.lock().await.map(Some),
        };
        match asked {
            Ok(Some(guard)) => {
                let stats = guard.wait_stats();
                self.say(&format!(
                    "got {} with token {} after {:.3} s (place {} in the queue)",
                    self.name,
                    guard.token(),
                    stats.waited.as_secs_f64(),
                    stats.position + 1
                ));
                Ok(Some(guard))
            }
            Ok(None) => {
                self.say(&format!("{} is busy", self.name));
                Ok(None)
            }
            Err(e @ Error::Timeout { .. }) => {
                self.say(&format!("{}: {e}", self.name));
                Ok(None)
            }
            Err(e) => Err(failed(&self.name, &e)),
        }
    }

    fn mutex(&self, client: &Client) -> Mutex {
        if self.name.starts_with('/') { client.mutex_at(&self.name) } else { client.mutex(&self.name) }
    }

    async fn hold(&self, client: &Client, guard: Guard, passed: &mut Passed) -> Result<u8, Failure> {
        let words = self.command();
        let end = if words.is_empty() {
            self.hold_alone(&guard, passed).await
        } else {
            let job = Job::start(&words, &self.environment(client, &guard))?;
            self.attend(client, &guard, job, passed).await?
        };
        let code = match end {
            End::Code(code) => code,
            End::Lost(why) => return Err(Failure::new(LOST, format!("{}: {why}; try again", self.name))),
        };
        match guard.release().await {
            Ok(()) => {}
            Err(e @ ReleaseError::NotHeld) => {
                return Err(Failure::new(LOST, format!("{}: {e} when the command ended", self.name)));
            }
            // The command had its lock to the end, so its code stands.
            Err(e) => eprintln!("rowlock: {}: {e}; it is free when the session has timed out", self.name),
        }
        self.say(&format!("released {}", self.name));
        Ok(code)
    }

    fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(command) => vec!["/bin/sh".into(), "-c".into(), command.clone()],
            None => self.words.clone(),
        }
    }

    fn environment(&self, client: &Client, guard: &Guard) -> Vec<(&'static str, String)> {
        vec![
            ("ROWLOCK_LOCK_NAME", self.name.clone()),
            ("ROWLOCK_LOCK_KEY", guard.path().to_owned()),
            ("ROWLOCK_LOCK_TOKEN", guard.token().to_string()),
            ("ROWLOCK_SESSION_ID", client.session_id().to_string()),
            ("ROWLOCK_LOCK_HELD", "true".to_owned()),
        ]
    }

    /// Holds the lock for somebody who looks at our output.
    async fn hold_alone(&self, guard: &Guard, passed: &mut Passed) -> End {
        println!("{} {}", guard.path(), guard.token());
        tokio::select! {
            _ = passed.next() => End::Code(0),
            reason = guard.lost() => End::Lost(reason.to_string()),
        }
    }

    /// Stays with the command until it has ended, by itself or because the lock is lost.
    async fn attend(
        &self,
        client: &Client,
        guard: &Guard,
        mut job: Job,
        passed: &mut Passed,
    ) -> Result<End, Failure> {
        let grace = GRACE_MAX.min(client.session_timeout() / 4);
        let mut asked_to_end = false;
        loop {
            let Some(until) = guard.valid_until() else {
                let why = guard.lost().await.to_string();
                job.signal(Signal::KILL);
                job.ended().await?;
                return Ok(End::Lost(why));
            };
            if !asked_to_end && time::now() + grace >= until {
                asked_to_end = true;
                eprintln!("rowlock: {}: no contact to the cluster, the command must end", self.name);
                job.signal(Signal::TERM);
            }
            let next = if asked_to_end { until } else { until - grace };
            tokio::select! {
                biased;
                code = job.ended() => {
                    let code = code?;
                    if asked_to_end {
                        let why = "the command was ended because contact to the cluster was lost";
                        return Ok(End::Lost(why.to_owned()));
                    }
                    return Ok(End::Code(code));
                }
                _ = guard.lost() => {}
                // The deadline has moved on meanwhile, or it is there.
                () = time::sleep_until(next) => {}
                signal = passed.next() => {
                    if !(job.hears_keyboard() && from_keyboard(signal)) {
                        job.signal(signal);
                    }
                }
            }
        }
    }

    fn say(&self, text: &str) {
        if self.verbose {
            eprintln!("rowlock: {text}");
        }
    }
}

/// Ends the session at once rather than by its timeout. If no server can be told, it ends by itself.
async fn leave(client: &Client) {
    let _ = client.close().await;
}

/// What a shell says of a command that this signal ended.
fn shell_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
