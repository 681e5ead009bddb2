//! Flags that `lock`, `sem` and `elect` share: how long to wait, how to hold, what to run.

use std::ffi::OsString;
use std::time::Duration;

use rowlock_client::{Client, Error, Owner, WaitStats};
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::place_number;

use crate::cluster::{Cluster, open, seconds, some_seconds};
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::print::errln;

/// The place under which a command works that asks for locks itself, so that the cluster can detect deadlocks
/// with it.
pub const OWNER: &str = "ROWLOCK_LOCK_OWNER";
const GRACE: &str = "ROWLOCK_DISCONNECT_GRACE_MS";

/// flock's flags about waiting; whether to wait at all is a flag of each command.
#[derive(clap::Args)]
pub struct Waiting {
    /// Give up after this many seconds, connecting included; 0 means --nonblock
    #[arg(short = 'w', short_alias = 't', long, visible_alias = "wait", value_name = "SEC", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Exit code if the lock is busy or the timeout passes
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    pub conflict_exit_code: u8,
}

impl Waiting {
    /// Starts the timeout now; `nonblock` is a timeout of zero.
    pub fn begin(&self, nonblock: bool) -> Asking {
        Asking::begin(if nonblock { Some(Duration::ZERO) } else { self.timeout })
    }

    /// The outcome of asking. `None`: busy, or not in time; with -v the reason has been printed.
    pub fn judge<G>(asked: Result<Option<G>, Error>, say: impl Fn(&str)) -> Result<Option<G>, Error> {
        match asked {
            Ok(None) => {
                say("busy");
                Ok(None)
            }
            Err(e @ Error::Timeout { .. }) => {
                say(&e.to_string());
                Ok(None)
            }
            asked => asked,
        }
    }
}

/// How the session is tied to us.
#[derive(clap::Args)]
pub struct Ties {
    #[command(flatten)]
    pub cluster: Cluster,
    /// End the session this many seconds after its connection was closed; 0: after the session timeout
    /// [default: 3] [env: ROWLOCK_DISCONNECT_GRACE_MS=]
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    disconnect_grace: Option<Duration>,
}

/// On which terms it is held.
#[derive(clap::Args)]
pub struct Terms {
    /// Label shown in queues and history [default: host and process id] [env: ROWLOCK_LABEL=]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// End the command and release the lock after this many seconds
    #[arg(long, value_name = "SEC", value_parser = some_seconds)]
    pub max_hold: Option<Duration>,
    /// Grant the lock to no client for this many seconds if this session expires
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    pub lock_delay: Option<Duration>,
    /// Grant the lock to no other client for this many seconds after the grant, however the hold ends
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    pub min_hold: Option<Duration>,
}

/// Needed when a container is killed as a whole, warden included. Longer than a change of the leader with the
/// default elections, even with split votes: a command must not end because a node does.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Even with --nonblock, wait this long for a cluster that changes its leader.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The time limit from the start of the program: for connecting, and for waiting in the queue.
pub struct Asking {
    begun: Instant,
    /// `None`: as long as it takes.
    timeout: Option<Duration>,
}

impl Asking {
    pub fn begin(timeout: Option<Duration>) -> Asking {
        Asking { begun: time::now(), timeout }
    }

    /// The time left for waiting in the queue; zero: take the lock if it is free, and do not wait.
    pub fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()))
    }

    /// How long the servers may keep silent.
    fn answer_max(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.max(ANSWER_MAX))
    }

    /// The result of `work`, if the servers answer in time.
    pub async fn bound<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let Some(most) = self.answer_max() else { return work.await };
        // The work has this bound too, and more to say when it is reached.
        time::timeout_at(self.begun + most + SAYING, work).await.unwrap_or_else(|_| {
            let what = format!("no server answered within {} s", most.as_secs_f64());
            Err(Failure::new(UNAVAILABLE, format!("{what}; start the cluster or name it with --endpoints")))
        })
    }
}

/// How long after the timeout its message may come.
const SAYING: Duration = Duration::from_millis(500);

impl Ties {
    pub async fn connect(&self, label: Option<&str>, asking: &Asking) -> Result<Client, Failure> {
        let mut config = self.cluster.client_within(asking.answer_max())?;
        match label {
            Some(label) => config = config.label(label),
            None if std::env::var_os("ROWLOCK_LABEL").is_none() => config = config.label(who_we_are()),
            None => {}
        }
        match self.disconnect_grace {
            Some(grace) => config = config.disconnect_grace(grace),
            None if std::env::var_os(GRACE).is_none() => config = config.disconnect_grace(DEFAULT_GRACE),
            None => {}
        }
        match open(config).await {
            Err(failure) if failure.code == UNAVAILABLE => Err(self.cluster.explained(failure).await),
            opened => opened,
        }
    }
}

impl Terms {
    /// If we die under the lock, the next client may get it as soon as the command is gone.
    pub fn may_be_followed_at_once(&self) -> bool {
        self.lock_delay.is_none_or(|delay| delay.is_zero())
    }
}

/// Sends a [`rowlock_client::LockRequest`] of any kind on these terms, with the time limit.
macro_rules! ask_on_terms {
    ($request:expr, $terms:expr, $owner:expr, $asking:expr) => {{
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
        match $asking.left() {
            None => request.lock().await.map(Some),
            Some(left) if left.is_zero() => request.try_lock().await,
            Some(left) => request.timeout(left).lock().await.map(Some),
        }
    }};
}
pub(super) use ask_on_terms;

/// Host and process, as a queue shows them.
fn who_we_are() -> String {
    let host = rustix::system::uname();
    format!("{}/{}", host.nodename().to_string_lossy(), std::process::id())
}

/// The owner in whose name we ask: our own, under the place of the `rowlock lock` in whose command we run, if
/// there is one. With an empty variable, and where the server does not detect deadlocks, in no name.
pub async fn owner(client: &Client) -> Result<Owner, Failure> {
    // An error comes up again at the lock itself.
    let Ok(extensions) = client.extensions().await else { return Ok(Owner::Unnamed) };
    match std::env::var(OWNER) {
        _ if !extensions.has_locks() => Ok(Owner::Unnamed),
        Err(_) => Ok(Owner::Session),
        Ok(none) if none.is_empty() => Ok(Owner::Unnamed),
        Ok(number) => match number.parse() {
            Ok(number) if extensions.has_owners_under_places() => Ok(Owner::Under(number)),
            // This server cannot tell a command that works beside us from one that works above us.
            Ok(_) => Ok(Owner::Unnamed),
            Err(_) => Err(Failure::new(USAGE, format!("{OWNER}={number}: not a number; unset it"))),
        },
    }
}

/// The environment variable that tells the command's children that they work under our place. Empty, if we
/// ask in no name.
pub fn owner_in_environment(owner: Owner, key: &str) -> (&'static str, String) {
    match owner {
        Owner::Unnamed => (OWNER, String::new()),
        Owner::Session | Owner::Named(_) | Owner::Under(_) => (OWNER, place_number(key).to_string()),
    }
}

/// The command to run, and what to print about it.
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
    /// Program and arguments: these, unless there is a -c. Empty: just hold.
    pub fn command(&self, words: &[OsString]) -> Vec<OsString> {
        match &self.shell {
            Some(command) => vec!["/bin/sh".into(), "-c".into(), command.clone()],
            None => words.to_vec(),
        }
    }

    /// Prints a line with -v only.
    pub fn say(&self, text: &str) {
        if self.verbose {
            errln!("rowlock: {text}");
        }
    }
}

/// What -v prints about a grant.
pub fn granted(token: impl std::fmt::Display, stats: WaitStats) -> String {
    let (waited, place) = (stats.waited.as_secs_f64(), stats.position + 1);
    format!("got it with token {token} after {waited:.3} s (place {place} in the queue)")
}

#[cfg(test)]
mod tests {
    use rowlock_coordinator::config::RaftConfig;

    use super::*;

    #[test]
    fn default_grace_outlasts_a_failover_with_default_elections() {
        let failover = Duration::from_millis(2 * RaftConfig::default().election_timeout_max_ms);
        assert!(DEFAULT_GRACE > failover);
    }
}
