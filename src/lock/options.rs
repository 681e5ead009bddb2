//! Flags that `lock`, `sem` and `elect` share: how long to wait, on which terms to hold, what to run.

use std::ffi::OsString;
use std::future::Future;
use std::time::Duration;

use rowlock_client::{Client, Error, Guard, LockRequest, Owner};
use rowlock_env::rng;

use crate::cluster::{Cluster, open, seconds};
use crate::exit::{Failure, REFUSED, USAGE};

/// In whose name the commands of one `rowlock lock` and those that it runs ask for locks, so that the cluster sees when
/// they and others would wait for each other for ever.
pub const OWNER: &str = "ROWLOCK_LOCK_OWNER";
const GRACE: &str = "ROWLOCK_DISCONNECT_GRACE_MS";

/// flock's flags about waiting.
#[derive(clap::Args)]
pub struct Patience {
    /// Do not wait: fail if it is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    pub nonblock: bool,
    /// Wait at most so many seconds
    #[arg(short = 'w', long, visible_alias = "wait", value_name = "SEC", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Exit code for busy, with -n or -w
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = REFUSED)]
    pub conflict_exit_code: u8,
}

impl Patience {
    /// Asks with or without waiting. `None`: busy, or not in time; the reason has been said if that was wished.
    pub async fn ask<G>(
        &self,
        at_once: impl Future<Output = Result<Option<G>, Error>>,
        waiting: impl Future<Output = Result<G, Error>>,
        say: impl Fn(&str),
    ) -> Result<Option<G>, Error> {
        if self.nonblock {
            let granted = at_once.await?;
            if granted.is_none() {
                say("busy");
            }
            return Ok(granted);
        }
        match waiting.await {
            Ok(granted) => Ok(Some(granted)),
            Err(e @ Error::Timeout { .. }) => {
                say(&e.to_string());
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

/// How the session is tied to us.
#[derive(clap::Args)]
pub struct Ties {
    #[command(flatten)]
    pub cluster: Cluster,
    /// When our connection has been closed for so many seconds the session ends, instead of after its whole timeout;
    /// 0: the whole timeout [default: 3] [env: ROWLOCK_DISCONNECT_GRACE_MS=]
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    disconnect_grace: Option<Duration>,
}

/// On which terms it is held.
#[derive(clap::Args)]
pub struct Terms {
    /// Who this is, for people who look at the queue [default: host and process id] [env: ROWLOCK_LABEL=]
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Hold it at most so many seconds: the command is ended then, and the cluster takes it back if need be
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    max_hold: Option<Duration>,
    /// If this session expires, nobody is granted it for so many seconds
    #[arg(long, value_name = "SEC", value_parser = seconds)]
    lock_delay: Option<Duration>,
}

/// For a container that is killed as a whole, warden and all. Longer than a change of the leader takes with the default
/// elections (up to 2 s): a command must not end because a node does.
const DEFAULT_GRACE: Duration = Duration::from_secs(3);

impl Ties {
    /// Opens a session.
    pub async fn connect(&self, label: Option<&str>) -> Result<Client, Failure> {
        let mut config = self.cluster.client()?;
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
        open(config).await
    }
}

impl Terms {
    /// Whoever dies under the lock may be followed at once, as soon as the command is gone.
    pub fn may_be_followed_at_once(&self) -> bool {
        self.lock_delay.is_none_or(|delay| delay.is_zero())
    }

    /// Puts them into a request for a lock, in the name of `owner`.
    pub fn apply(&self, mut request: LockRequest<Guard>, owner: Owner) -> LockRequest<Guard> {
        if let Some(most) = self.max_hold {
            request = request.max_hold(most);
        }
        if let Some(delay) = self.lock_delay {
            request = request.lock_delay(delay);
        }
        request.owner(owner)
    }
}

/// Host and process, as a queue shows them.
fn who_we_are() -> String {
    let host = rustix::system::uname();
    format!("{}/{}", host.nodename().to_string_lossy(), std::process::id())
}

/// In whose name we ask: that of the `rowlock lock` in whose command we run, else a new one. With an empty variable, and
/// where the server does not look for deadlocks, in nobody's.
pub async fn owner(client: &Client) -> Result<Owner, Failure> {
    // An error comes up again at the lock itself.
    if !client.extensions().await.is_ok_and(|extensions| extensions.has_locks()) {
        return Ok(Owner::Unnamed);
    }
    match std::env::var(OWNER) {
        Err(_) => Ok(Owner::Named(rng::u64())),
        Ok(none) if none.is_empty() => Ok(Owner::Unnamed),
        Ok(number) => match number.parse() {
            Ok(number) => Ok(Owner::Named(number)),
            Err(_) => Err(Failure::new(USAGE, format!("{OWNER}={number}: not a number; unset it"))),
        },
    }
}

/// The same, for those whom the command will run.
pub fn owner_in_environment(owner: Owner) -> (&'static str, String) {
    match owner {
        Owner::Named(number) => (OWNER, number.to_string()),
        Owner::Unnamed | Owner::Session => (OWNER, String::new()),
    }
}

/// The command to run, and how to speak of it.
#[derive(clap::Args)]
pub struct Work {
    /// Run this with `sh -c`
    #[arg(short = 'c', long, visible_alias = "command", value_name = "COMMAND", conflicts_with = "words")]
    shell: Option<OsString>,
    /// Say on stderr what happens
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

    /// With -v.
    pub fn say(&self, text: &str) {
        if self.verbose {
            eprintln!("rowlock: {text}");
        }
    }
}
