//! `rowlock acquire` takes a lock and exits; `rowlock release --lease FILE` releases the lock later, or the
//! cluster does when the time of the lease is over. For steps of CI jobs and for systemd, where no process
//! stays that could send heartbeats.
//!
//! probe the limit of session timeouts -> wait in the queue with a short session -> write the lease file
//! (`file`) -> give the session the timeout of the lease -> leave without closing the session. Invariant: a
//! process that is killed at any point leaves a lock either for the short session, or with a file.
//!
//! No process watches the lock: the caller must be done in time, or give each write the fencing token.

mod file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Claim, Client, ClientBuilder, Guard, SessionTicket};
use rowlock_env::time;
use rowlock_proto::Right;
use rowlock_proto::lock::place_number;
use rowlock_proto::path;

use self::file::{Lease, LeaseFile};
use super::options::{self, Terms, TimeLimit, Waiting, request_on_terms};
use crate::acl::{self, LockRef};
use crate::cluster::{Cluster, failed, leave, open};
use crate::exit::{Failure, LOST, REFUSED, UNAVAILABLE, USAGE};
use crate::moment::{duration, rfc3339, span};
use crate::name::Name;
use crate::patience;
use crate::print::{outln, print};
use crate::signals::{Stop, shell_code};
use crate::znode::print_json;

/// Session timeout while waiting, and while releasing: a killed process soon leaves the queue.
const SHORT: Duration = Duration::from_secs(10);
/// Longest lease: about the longest session timeout that the protocol can express.
const TTL_MAX: Duration = Duration::from_secs(24 * 24 * 3_600);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LeaseOutput {
    /// One line for people.
    #[default]
    Simple,
    /// One JSON document: the lease file without its secret.
    Json,
    /// Lines NAME=VALUE, for files of variables.
    Env,
}

/// Take a lock for a time, without a process that stays
///
/// The cluster releases the lock when the time is over. Nothing stops a caller that is late: pass the fencing
/// token on.
#[derive(clap::Args)]
#[command(mut_arg("session_timeout", |arg| {
    arg.long("ttl").visible_alias(None).required(true).value_parser(ttl).help(
        "Time after which the lock is free without a release; at most max_timeout_ms of [session]",
    )
}))]
pub struct Acquire {
    /// Lock name, e.g. ci/deploy, or the path of its znode, e.g. /locks/ci/deploy
    #[arg(required_unless_present = "renew")]
    name: Option<String>,
    /// Treat NAME as a path
    #[arg(long)]
    path: bool,
    /// File for the lease, mode 0600 [default: NAME.lease, with - for each slash]
    #[arg(long, value_name = "FILE")]
    lease: Option<PathBuf>,
    /// Extend the lease of this file instead of taking a lock: --ttl counts from now
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "path", "lease", "shared", "nonblock",
        "timeout", "label", "lock_delay"])]
    renew: Option<PathBuf>,
    /// Share the lock with other holders in shared mode
    #[arg(short, long)]
    shared: bool,
    /// Fail instead of waiting if the lock is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    waiting: Waiting,
    /// Label shown in queues and history [default: host and `lease`] [env: ROWLOCK_LABEL=]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Grant the lock to no client for this time if the lease ends without a release
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lock_delay: Option<Duration>,
    /// Format of the output
    #[arg(short = 'o', long, value_enum, default_value_t)]
    output: LeaseOutput,
    #[command(flatten)]
    cluster: Cluster,
}

fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        time if time > TTL_MAX => Err("must be at most 24d".to_owned()),
        time => Ok(time),
    }
}

impl Acquire {
    /// Exits with 1, or the code of -E, if the lock is busy.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut stop = Stop::listen()?;
        let Some(ttl) = self.cluster.session_timeout else {
            return Err(Failure::new(USAGE, "--ttl is missing"));
        };
        if let Some(path) = &self.renew {
            return self.renew(path, ttl).await;
        }
        let name = Name::new(self.name.clone().unwrap_or_default(), self.path);
        let mut file = LeaseFile::at(&self.lease.clone().unwrap_or_else(|| default_file(name.as_typed())))?;
        file.reserve()?;
        let limit = self.waiting.begin(self.nonblock);
        let waiting = async {
            let builder = self.builder(&limit)?;
            check_limit(self.cluster.open(builder.clone().session_timeout(ttl)).await?, ttl).await?;
            let client = self.cluster.open(builder.session_timeout(SHORT.min(ttl))).await?;
            match limit.bound_request(self.wait(&name, &client, &limit)).await {
                Ok(guard) => Ok((client, guard)),
                Err(failure) => {
                    leave(&client).await;
                    Err(failure)
                }
            }
        };
        // Dropping the client at a signal leaves the queue.
        let (client, guard) = tokio::select! {
            granted = waiting => granted?,
            signal = stop.signal() => return Ok(ExitCode::from(shell_code(signal))),
        };
        let lease = match self.write_lease(&name, (&client, &guard), ttl, &mut file) {
            Ok(lease) => lease,
            Err(failure) => {
                leave(&client).await;
                return Err(failure);
            }
        };
        client.detach().map_err(|e| failed(name.as_typed(), &e))?;
        match self.prolong(&lease).await {
            Ok(client) => client.detach().map_err(|e| failed(name.as_typed(), &e))?,
            Err(failure) => {
                file.remove()?;
                return Err(failure);
            }
        };
        self.print(&lease, &file)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the lease file while the session is still short: no lock is held for long without a file.
    fn write_lease(
        &self,
        name: &Name,
        (client, guard): (&Client, &Guard),
        ttl: Duration,
        file: &mut LeaseFile,
    ) -> Result<Lease, Failure> {
        let znode = path::name(guard.path());
        let claim = Claim {
            path: format!("{}/{znode}", name.mutex(client).server_path()).into(),
            token: guard.token(),
        };
        let ended = || Failure::new(LOST, format!("{}: the session has ended; try again", name.as_typed()));
        let now_ms = time::wall_ms();
        let lease = Lease {
            lock: name.as_typed().to_owned(),
            claim,
            ticket: client.session_ticket().ok_or_else(ended)?,
            endpoints: self.cluster.endpoints()?,
            cluster: client.cluster_id().map(|id| id.to_string()),
            ttl_ms: millis(ttl),
            acquired_ms: now_ms,
            // The cluster counts from a later moment.
            expires_ms: now_ms.saturating_add(millis(ttl)),
        };
        file.write_new(&lease)?;
        Ok(lease)
    }

    fn builder(&self, limit: &TimeLimit) -> Result<ClientBuilder, Failure> {
        // Without a grace, which would end the session soon after this process.
        let builder = self.cluster.client_within(limit.answer_max())?.disconnect_grace(Duration::ZERO);
        Ok(match &self.label {
            Some(label) => builder.label(label),
            None if std::env::var_os("ROWLOCK_LABEL").is_none() => {
                builder.label(format!("{}/lease", options::host()))
            }
            None => builder,
        })
    }

    async fn wait(&self, name: &Name, client: &Client, limit: &TimeLimit) -> Result<Guard, Failure> {
        let owner = options::owner(client).await?;
        let mut request = name.mutex(client).request();
        if self.shared {
            request = request.shared();
        }
        let terms = Terms { label: None, max_hold: None, lock_delay: self.lock_delay, min_hold: None };
        let acquiring = async { request_on_terms!(request, terms, owner, limit) };
        let result = patience::explained(acquiring, super::wait_message(name, client)).await;
        match Waiting::none_if_late(result, |_| {}) {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => {
                let busy = format!("{}: busy{}", name.as_typed(), super::summary(name, client).await);
                Err(Failure::new(self.waiting.conflict_exit_code, busy))
            }
            Err(e) => {
                let lock = LockRef { name: name.as_typed(), path: &name.mutex(client).server_path() };
                Err(acl::refused(client, lock, Right::Take, &e).await)
            }
        }
    }

    /// Gives the session of `lease` the timeout of the lease, counted from now. Releases the lock if that
    /// fails.
    async fn prolong(&self, lease: &Lease) -> Result<Client, Failure> {
        let name = &lease.lock;
        let ttl = Duration::from_millis(lease.ttl_ms.unsigned_abs());
        let client = match open(lease.builder(&self.cluster)?.session_timeout(ttl)).await {
            Ok(client) => client,
            Err(failure) if failure.code == LOST => return Err(lost(lease, "its session has ended")),
            Err(failure) => return Err(Failure::new(failure.code, format!("{name}: {failure}"))),
        };
        let held = async {
            check_granted(client.session_timeout(), ttl, "the lock was released again")?;
            match client.holds(&lease.claim).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(lost(lease, TAKEN)),
                Err(e) => Err(failed(name, &e)),
            }
        };
        match held.await {
            Ok(()) => Ok(client),
            Err(failure) => {
                leave(&client).await;
                Err(failure)
            }
        }
    }

    async fn renew(&self, path: &Path, ttl: Duration) -> Result<ExitCode, Failure> {
        let mut file = LeaseFile::at(path)?;
        let lease = file.read()?;
        check_limit(open(lease.endpoints_of(&self.cluster)?.session_timeout(ttl)).await?, ttl).await?;
        let (ttl_ms, now_ms) = (millis(ttl), time::wall_ms());
        let lease = Lease { ttl_ms, expires_ms: now_ms.saturating_add(ttl_ms), ..lease };
        let client = self.prolong(&lease).await?;
        client.detach().map_err(|e| failed(&lease.lock, &e))?;
        // A file that cannot be written has an earlier end: the lock is released as well by it.
        file.write(&lease)?;
        self.print(&lease, &file)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, lease: &Lease, file: &LeaseFile) -> Result<(), Failure> {
        match self.output {
            LeaseOutput::Json => print_json(&lease.public()),
            LeaseOutput::Env => {
                let (token, session) = (lease.claim.token, lease.session());
                let owner = place_number(&lease.claim.path);
                let lines = format!(
                    "ROWLOCK_LOCK_TOKEN={token}\nROWLOCK_LOCK_OWNER={owner}\nROWLOCK_SESSION_ID={session}\n"
                );
                print(lines.as_bytes())
            }
            LeaseOutput::Simple => {
                let (token, until) = (lease.claim.token, rfc3339(lease.expires_ms));
                outln!(
                    "{}: held until {until}, token {token}, lease file {}",
                    lease.lock,
                    file.path().display()
                );
                Ok(())
            }
        }
    }
}

/// Reason of a loss before the time of a lease.
const TAKEN: &str = "it was taken away by a forced release, or its znode was deleted";

fn lost(lease: &Lease, why: &str) -> Failure {
    let problem = format!("{}: the lock was lost: {why}", lease.lock);
    let remedy = "another client may have held it since: check what was done under it";
    Failure::new(LOST, format!("{problem}; {remedy}"))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn default_file(name: &str) -> PathBuf {
    format!("{}.lease", name.trim_start_matches('/').replace('/', "-")).into()
}

/// Refuses a lease that the cluster would shorten, before the lock is taken. Closes the session of `client`,
/// which asked for the timeout of the lease.
async fn check_limit(client: Client, ttl: Duration) -> Result<(), Failure> {
    let granted = client.session_timeout();
    leave(&client).await;
    check_granted(granted, ttl, "nothing was changed")
}

fn check_granted(granted: Duration, ttl: Duration, result: &str) -> Result<(), Failure> {
    let (granted, ttl) = (millis(granted), millis(ttl));
    if granted == ttl {
        return Ok(());
    }
    let (bound, setting, change) = match granted < ttl {
        true => ("most", "max_timeout_ms", "raise"),
        false => ("least", "min_timeout_ms", "lower"),
    };
    let allowed = match granted % 1_000 {
        0 => format!("{}s", granted / 1_000),
        _ => format!("{granted}ms"),
    };
    let problem =
        format!("--ttl is {}, but this cluster grants sessions of at {bound} {}", span(ttl), span(granted));
    let setting = format!("{change} {setting} in [session] of cluster.toml to {ttl} and restart the nodes");
    Err(Failure::new(REFUSED, format!("{problem}; {setting}, or use --ttl {allowed}; {result}")))
}

impl Lease {
    fn session(&self) -> String {
        let ticket = self.ticket.reveal();
        format!("0x{}", ticket.split('.').next().unwrap_or_default())
    }

    /// Returns the client for the cluster of the lease, unless options name another one.
    fn endpoints_of(&self, cluster: &Cluster) -> Result<ClientBuilder, Failure> {
        let builder = cluster.client_of(&self.endpoints)?.disconnect_grace(Duration::ZERO);
        let id = self.cluster.as_deref().and_then(|id| id.parse().ok());
        // The paths of the file are those on the server.
        let builder = builder.chroot("/");
        Ok(id.map_or(builder.clone(), |id| builder.cluster_id(id)))
    }

    /// Refuses servers of another cluster, which know nothing of the session.
    async fn check_cluster(&self, cluster: &Cluster) -> Result<(), Failure> {
        match open(self.endpoints_of(cluster)?).await {
            Ok(client) => leave(&client).await,
            Err(failure) if failure.code == REFUSED => {
                return Err(Failure::new(REFUSED, format!("{} was not released: {failure}", self.lock)));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns the client that takes over the session.
    fn builder(&self, cluster: &Cluster) -> Result<ClientBuilder, Failure> {
        Ok(self.endpoints_of(cluster)?.take_over(SessionTicket::clone(&self.ticket)))
    }
}

/// Releases the lock of a lease file, and removes the file of a lease that has ended. Exits with 75 if the
/// lock had been lost.
pub async fn release(path: &Path, cluster: &Cluster) -> Result<ExitCode, Failure> {
    let file = LeaseFile::at(path)?;
    let lease = file.read()?;
    let (name, until) = (&lease.lock, rfc3339(lease.expires_ms));
    let client = match open(lease.builder(cluster)?.session_timeout(SHORT)).await {
        Ok(client) => client,
        Err(failure) if failure.code == LOST => {
            lease.check_cluster(cluster).await?;
            file.remove()?;
            let left_ms = lease.expires_ms.saturating_sub(time::wall_ms());
            let why = match left_ms {
                ..=0 => format!("its time was over {} ago ({until})", span(left_ms.saturating_neg())),
                left => format!(
                    "its session has ended {} before its time, by an operator or an earlier release",
                    span(left)
                ),
            };
            return Err(lost(&lease, &why));
        }
        Err(failure) => {
            let hint = match failure.code {
                UNAVAILABLE => {
                    format!("; {name} stays locked until {until}, and {} is kept: retry", path.display())
                }
                _ => String::new(),
            };
            return Err(Failure::new(failure.code, format!("{name} was not released: {failure}{hint}")));
        }
    };
    let released = client.release_claim(&lease.claim).await;
    leave(&client).await;
    match released {
        Ok(true) => {
            file.remove()?;
            let held_ms = time::wall_ms().saturating_sub(lease.acquired_ms);
            outln!("{name}: released after {}, token {}", span(held_ms.max(0)), lease.claim.token);
            Ok(ExitCode::SUCCESS)
        }
        Ok(false) => {
            file.remove()?;
            Err(lost(&lease, TAKEN))
        }
        Err(e) => Err(failed(name, &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_beyond_the_limits_of_the_cluster_names_the_setting() {
        let s = Duration::from_secs;
        check_granted(s(40), s(40), "").unwrap();
        let more = check_granted(s(40), s(3_600), "nothing was changed").unwrap_err();
        assert_eq!(
            more.message,
            "--ttl is 1 h, but this cluster grants sessions of at most 40 s; raise max_timeout_ms in [session] of \
             cluster.toml to 3600000 and restart the nodes, or use --ttl 40s; nothing was changed"
        );
        let less = check_granted(s(4), s(1), "").unwrap_err();
        assert!(less.message.contains("at least 4.00 s; lower min_timeout_ms"), "{less}");
    }

    #[test]
    fn the_default_file_has_one_level() {
        assert_eq!(default_file("nightly"), Path::new("nightly.lease"));
        assert_eq!(default_file("/locks/ci/deploy"), Path::new("locks-ci-deploy.lease"));
    }

    #[test]
    fn leases_last_up_to_24_days() {
        assert_eq!(ttl("1h"), Ok(Duration::from_secs(3_600)));
        assert!(ttl("24d").is_ok() && ttl("25d").is_err() && ttl("0").is_err());
    }
}
