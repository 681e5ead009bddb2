//! Common flags of `lock`, `sem` and `elect`: time limit, terms of the hold, command to run.

use std::ffi::OsString;
use std::time::Duration;

use rowlock_client::{Client, Error, Owner, WaitStats};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::place_number;

use crate::cluster::Cluster;
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::moment::{duration, positive_duration};
use crate::print::errln;

/// Environment variable with the queue position of the enclosing `rowlock lock`: a command that requests
/// locks itself takes part in deadlock detection under that position.
pub const OWNER: &str = "ROWLOCK_LOCK_OWNER";
const GRACE: &str = "ROWLOCK_DISCONNECT_GRACE";

/// Waiting flags in the style of flock; each command has its own flag against waiting.
#[derive(clap::Args)]
pub struct Waiting {
    /// Give up after this time, connecting included; 0 means --nonblock
    #[arg(short = 'w', short_alias = 't', long, visible_alias = "wait", value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Exit code if the lock is busy or the timeout passes
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    pub conflict_exit_code: u8,
}

impl Waiting {
    /// Starts the timeout now; `nonblock` is a timeout of zero.
    pub fn begin(&self, nonblock: bool) -> TimeLimit {
        TimeLimit::begin(if nonblock { Some(Duration::ZERO) } else { self.timeout })
    }

    /// Turns a timeout into `None`; `None` means busy or not in time, and -v prints the reason.
    pub fn none_if_late<G>(
        result: Result<Option<G>, Error>,
        report: impl Fn(&str),
    ) -> Result<Option<G>, Error> {
        match result {
            Ok(None) => {
                report("busy");
                Ok(None)
            }
            Err(e @ Error::Timeout { .. }) => {
                report(&e.to_string());
                Ok(None)
            }
            result => result,
        }
    }
}

/// Options of the session.
#[derive(clap::Args)]
pub struct SessionOptions {
    #[command(flatten)]
    pub cluster: Cluster,
    /// End the session this time after the loss of its connection; 0: after the session timeout
    /// [default: 5s] [env: ROWLOCK_DISCONNECT_GRACE=]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    disconnect_grace: Option<Duration>,
}

/// Terms of the hold.
#[derive(clap::Args)]
pub struct Terms {
    /// Label shown in queues and history [default: host and process id] [env: ROWLOCK_LABEL=]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// End the command and release the lock after this time
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub max_hold: Option<Duration>,
    /// Grant the lock to no client for this time if this session expires
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub lock_delay: Option<Duration>,
    /// Grant the lock to no other client for this time after the grant, however the hold ends
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub min_hold: Option<Duration>,
}

/// Default disconnect grace, needed if a container is killed as a whole, warden included. Longer than a
/// change of the leader with default elections, even with split votes: a command must not end because a node
/// does.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Shortest wait for an answer, even with --nonblock: the cluster may be changing its leader.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Time limit since the start of the program, for connecting and for waiting in the queue.
pub struct TimeLimit {
    started: Instant,
    /// Time from `started`; `None` without a limit.
    timeout: Option<Duration>,
}

impl TimeLimit {
    pub fn begin(timeout: Option<Duration>) -> TimeLimit {
        TimeLimit { started: time::now(), timeout }
    }

    /// Returns the time left for waiting in the queue. Zero: take a free lock, but do not wait.
    pub fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.started.elapsed()))
    }

    /// Returns the longest wait for a silent server.
    pub fn answer_max(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.max(ANSWER_MAX))
    }

    /// Returns the result of `work`, a request of a connected client, or a failure if the cluster does not
    /// decide in time.
    pub async fn bound_request<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(most) = self.answer_max() else { return work.await };
        // `work` has the same limit and reports a more specific failure.
        let bounded = time::timeout_at(self.started + most + REPORT_TIME, work).await;
        bounded.unwrap_or_else(|_| {
            let problem = format!("the cluster did not decide within {} s", most.as_secs_f64());
            let remedy = "it may have lost its quorum: ask `rowlock doctor`";
            Err(Failure::new(UNAVAILABLE, format!("connected, but {problem}; {remedy}")))
        })
    }
}

/// Time for `work` to report its own timeout.
const REPORT_TIME: Duration = Duration::from_millis(500);

impl SessionOptions {
    pub async fn connect(&self, label: Option<&str>, limit: &TimeLimit) -> Result<Client, Failure> {
        let mut config = self.cluster.client_within(limit.answer_max())?;
        match label {
            Some(label) => config = config.label(label),
            None if std::env::var_os("ROWLOCK_LABEL").is_none() => config = config.label(default_label()),
            None => {}
        }
        match self.disconnect_grace {
            Some(grace) => config = config.disconnect_grace(grace),
            None if std::env::var_os(GRACE).is_none() => config = config.disconnect_grace(DEFAULT_GRACE),
            None => {}
        }
        self.cluster.open(config).await
    }
}

impl Terms {
    /// Returns true if the next client may be granted the lock as soon as the command of a killed `rowlock
    /// lock` is gone.
    pub fn ends_session_on_death(&self) -> bool {
        self.lock_delay.is_none_or(|delay| delay.is_zero())
    }
}

/// Sends a [`rowlock_client::LockRequest`] of any kind on these terms, within the time limit.
macro_rules! request_on_terms {
    ($request:expr, $terms:expr, $owner:expr, $limit:expr) => {{
        let mut request = $request.owner($owner);
        if let Some(most) = $terms.max_hold {
            request = request.max_hold(most);
        }
        if let Some(delay) = $terms.lock_delay {
            request = request.lock_delay(delay);
        }
        if let Some(least) = $terms.min_hold {
            request = request.min_hold(least);
        }
        match $limit.left() {
            None => request.lock().await.map(Some),
            Some(left) if left.is_zero() => request.try_lock().await,
            Some(left) => request.timeout(left).lock().await.map(Some),
        }
    }};
}
pub(super) use request_on_terms;

/// Returns host and process id, the default label in queues.
pub fn default_label() -> String {
    format!("{}/{}", host(), std::process::id())
}

pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the owner for deadlock detection: our session, under the position of the enclosing `rowlock lock`,
/// if there is one. Returns no owner with an empty variable, or if the server does not detect deadlocks.
pub async fn owner(client: &Client) -> Result<Owner, Failure> {
    // The request for the lock reports the same error.
    let Ok(extensions) = client.extensions().await else { return Ok(Owner::Unnamed) };
    match std::env::var(OWNER) {
        _ if !extensions.has_locks() => Ok(Owner::Unnamed),
        Err(_) => Ok(Owner::Session),
        Ok(none) if none.is_empty() => Ok(Owner::Unnamed),
        Ok(number) => match number.parse() {
            Ok(number) if extensions.has_owners_under_places() => Ok(Owner::Under(number)),
            // An older server cannot distinguish a command beside this process from a command above it.
            Ok(_) => Ok(Owner::Unnamed),
            Err(_) => Err(Failure::new(USAGE, format!("{OWNER}={number}: not a number; unset it"))),
        },
    }
}

/// Returns the variable that tells the command's children their enclosing queue position; an empty value if
/// we have no owner.
pub fn owner_in_environment(owner: Owner, key: &str) -> (&'static str, String) {
    match owner {
        Owner::Unnamed => (OWNER, String::new()),
        Owner::Session | Owner::Named(_) | Owner::Under(_) => (OWNER, place_number(key).to_string()),
    }
}

/// Command to run, and verbosity.
#[derive(clap::Args)]
pub struct Work {
    /// Shell command to run, as by `sh -c`
    #[arg(short = 'c', long, visible_alias = "command", value_name = "COMMAND", conflicts_with = "words")]
    shell: Option<OsString>,
    /// Keep ROWLOCK_AUTH, ROWLOCK_TOKEN and ROWLOCK_FROM_AUTH in the command's environment
    #[arg(long)]
    pub pass_auth: bool,
    /// Report progress on stderr
    #[arg(short, long)]
    pub verbose: bool,
}

impl Work {
    /// Returns program and arguments: the shell with -c, else `words`. Empty: only hold the lock.
    pub fn command(&self, words: &[OsString]) -> Vec<OsString> {
        match &self.shell {
            Some(command) => vec!["/bin/sh".into(), "-c".into(), command.clone()],
            None => words.to_vec(),
        }
    }

    /// Prints a line if -v is set.
    pub fn report(&self, text: &str) {
        if self.verbose {
            errln!("rowlock: {text}");
        }
    }
}

/// Formats the message of -v about a grant.
pub fn granted(token: impl std::fmt::Display, stats: WaitStats) -> String {
    let (waited, position) = (stats.waited.as_secs_f64(), stats.position + 1);
    format!("got it with token {token} after {waited:.3} s (position {position} in the queue)")
}

#[cfg(test)]
mod tests {
    use rowlock_coordinator::config::RaftConfig;

    use super::*;

    #[tokio::test]
    async fn a_late_decision_is_not_blamed_on_the_connection() {
        let started = time::now() - Duration::from_secs(60);
        let limit = TimeLimit { started, timeout: Some(Duration::ZERO) };
        let late = limit.bound_request(std::future::pending::<Result<(), Failure>>()).await.unwrap_err();
        assert!(late.message.starts_with("connected, but"), "{}", late.message);
    }

    #[test]
    fn default_grace_outlasts_a_failover_with_default_elections() {
        let failover = Duration::from_millis(2 * RaftConfig::default().election_timeout_max_ms);
        assert!(DEFAULT_GRACE > failover);
    }
}
