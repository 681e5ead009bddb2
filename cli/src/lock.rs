//! `rowlock lock`: runs a command under a lock, in the manner of flock(1); `rowlock sem`: under permits of a
//! semaphore, which bound the number of concurrent commands. `Queued` is their common part, and that of
//! `once`.
//!
//! connect -> wait in the queue -> run the command -> release. While the command runs, `under` watches the
//! lock's deadline: the command gets SIGTERM shortly before the deadline and SIGKILL at the deadline, before
//! the cluster grants the lock to the next client.
//!
//! `lease`: locks without a process that stays; `options`: flags; `under`: runs and supervises a command
//! under anything held; `job` is the command's process, `warden` ties the command to this process,
//! `terminal` is job control; `terraform` answers Terraform's requests (`http_server`).

pub mod elect;
mod http_server;
pub mod job;
pub mod lease;
pub mod once;
mod options;
mod terminal;
pub mod terraform;
mod under;
pub mod warden;

use std::ffi::OsString;
use std::process::ExitCode;

pub use job::SELF_EXE;
pub use options::default_label;
use rowlock_client::{Client, Error, Owner};
use rowlock_proto::report::Queue;
use rowlock_proto::{Right, SessionId};

use self::options::{SessionOptions, Terms, TimeLimit, Waiting, Work, request_on_terms};
use self::terminal::ForwardedSignals;
use self::under::Held;
use self::under::{CommandMode, ProcessEnd, RunContext};
use crate::acl::{self, LockRef};
use crate::cluster::leave;
use crate::exit::{Failure, REFUSED};
use crate::name::Name;
use crate::patience;
use crate::print::count;

/// Run a command under a lock, or hold the lock until a signal
#[derive(clap::Args)]
pub struct Lock {
    #[command(flatten)]
    name: Name,
    /// Share the lock with other holders in shared mode
    #[arg(short, long, overrides_with = "exclusive")]
    shared: bool,
    /// Hold the lock exclusively (the default)
    #[arg(short = 'x', long, short_alias = 'e', overrides_with = "shared")]
    exclusive: bool,
    /// Accepted for compatibility with flock; has no effect
    #[arg(short = 'o', long, hide = true)]
    close: bool,
    /// Fail instead of waiting if the lock is busy
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Lock {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            let mut request = self.name.mutex(client).request();
            if self.shared {
                request = request.shared();
            }
            request_on_terms!(request, self.queued.terms, owner, limit)
        };
        self.queued.run(&self.name, self.nonblock, acquire).await
    }
}

/// Run a command under permits of a semaphore, or hold them until a signal
#[derive(clap::Args)]
pub struct Sem {
    #[command(flatten)]
    name: Name,
    /// Number of permits of the semaphore. The first client decides; another number is refused [default: that
    /// of the semaphore]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Number of permits that the command takes
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,
    /// Fail instead of waiting if too few permits are free
    #[arg(long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Sem {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            let request = self.name.semaphore(client, self.limit.unwrap_or(0)).request(self.permits);
            request_on_terms!(request, self.queued.terms, owner, limit)
        };
        self.queued.run(&self.name, self.nonblock, acquire).await
    }
}

/// Longest prefix of a queue fetched for a waiter's progress message.
const QUEUE_MAX: u32 = 1_000;

/// Flags of waiting, of the hold, and of the command.
#[derive(clap::Args)]
pub struct Queued {
    #[command(flatten)]
    pub waiting: Waiting,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    session: SessionOptions,
    #[command(flatten)]
    work: Work,
    /// Program and arguments; everything from here on is the program's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    words: Vec<OsString>,
}

impl Queued {
    /// Runs the command under the hold returned by `acquire`; `None` means busy. Exits with the command's
    /// code.
    pub async fn run<H: Held>(
        &self,
        name: &Name,
        nonblock: bool,
        acquire: impl AsyncFnOnce(&Client, Owner, &TimeLimit) -> Result<Option<H>, Error>,
    ) -> Result<ExitCode, Failure> {
        self.run_with_mode(name, self.waiting.begin(nonblock), acquire, CommandMode::Plain).await
    }

    /// Returns true if there is a command to run.
    pub fn has_command(&self) -> bool {
        !self.work.command(&self.words).is_empty()
    }

    /// Same as [`Queued::run`], with a time limit and a mode of the command.
    pub async fn run_with_mode<H: Held>(
        &self,
        name: &Name,
        limit: TimeLimit,
        acquire: impl AsyncFnOnce(&Client, Owner, &TimeLimit) -> Result<Option<H>, Error>,
        mode: CommandMode<'_>,
    ) -> Result<ExitCode, Failure> {
        let mut signals = ForwardedSignals::listen()?;
        let label = self.terms.label.as_deref();
        let client = match signals.unless(self.session.connect(label, &limit)).await {
            Ok(connected) => connected?,
            Err(signal) => return Ok(ExitCode::from(under::shell_code(signal))),
        };
        let acquiring = async {
            let owner = options::owner(&client).await?;
            let why = wait_message(name, &client);
            let result = patience::explained(acquire(&client, owner, &limit), why).await;
            match self.granted(name, result) {
                Ok(held) => Ok((owner, held)),
                Err(Error::LimitConflict { actual: actual @ 1.. }) => Err(other_limit(name, &client, actual)),
                Err(e) => Err(acl::refused(
                    &client,
                    LockRef { name: name.as_typed(), path: &name.mutex(&client).server_path() },
                    Right::Take,
                    &e,
                )
                .await),
            }
        };
        let ended = match signals.unless(limit.bound_request(acquiring)).await {
            Ok(Ok((owner, Some(held)))) => self.hold(name, &client, owner, mode, held, &mut signals).await,
            Ok(Ok((_, None))) => Ok(ProcessEnd::Code(self.waiting.conflict_exit_code)),
            Ok(Err(failure)) => Err(failure),
            Err(signal) => Ok(ProcessEnd::Code(under::shell_code(signal))),
        };
        // Closing the session also leaves the queue.
        leave(&client).await;
        ended.map(ProcessEnd::exit)
    }

    fn granted<H: Held>(&self, name: &Name, result: Result<Option<H>, Error>) -> Result<Option<H>, Error> {
        let report = |text: &str| self.work.report(&format!("{}: {text}", name.as_typed()));
        let granted = Waiting::none_if_late(result, report)?;
        if let Some(held) = &granted {
            report(&options::granted(held.token(), held.wait_stats()));
        }
        Ok(granted)
    }

    async fn hold<H: Held>(
        &self,
        name: &Name,
        client: &Client,
        owner: Owner,
        mode: CommandMode<'_>,
        held: H,
        signals: &mut ForwardedSignals,
    ) -> Result<ProcessEnd, Failure> {
        let context = RunContext {
            client,
            name: name.as_typed(),
            work: &self.work,
            words: self.work.command(&self.words),
            owner,
            cluster_flags: self.session.cluster.arguments()?,
            ends_session_on_death: self.terms.ends_session_on_death(),
            mode,
        };
        under::run(held, context, signals).await
    }
}

/// Describes the wait for a person: the holder, and the position in the queue.
async fn wait_message(name: &Name, client: &Client) -> String {
    format!("waiting for {}{}; Ctrl-C gives up", name.as_typed(), summary(name, client).await)
}

async fn summary(name: &Name, client: &Client) -> String {
    let queue = client.report_queue(&name.mutex(client).server_path(), QUEUE_MAX).await;
    // Plain ZooKeeper has no such report.
    queue.map_or(String::new(), |queue| queue_summary(&queue, client.session_id()))
}

/// Failure of `sem` whose -n or --permits does not fit the semaphore, with both ways out.
fn other_limit(name: &Name, client: &Client, actual: u32) -> Failure {
    let problem = format!("{}: the semaphore has {}", name.as_typed(), count(actual, "permit"));
    let fit = format!("use -n {actual} and at most as many --permits");
    let path = name.mutex(client);
    let change = format!("or change their number for all: rowlock set {} permits=N", path.path());
    Failure::new(REFUSED, format!("{problem}; {fit}, {change}"))
}

/// Formats ` (held by worker-7 for 20 s, 2 before us)`, without unknown parts.
fn queue_summary(queue: &Queue, session: SessionId) -> String {
    let holder = queue.holders.first().map(|holder| {
        let label = holder.place.label.as_deref().map(crate::print::safe).filter(|label| !label.is_empty());
        let more = match queue.holder_count {
            0 | 1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let held = holder.held_ms.map(|ms| format!(" for {}", crate::moment::span(ms))).unwrap_or_default();
        format!("held by {}{more}{held}", label.unwrap_or_else(|| "an unnamed client".to_owned()))
    });
    let before = queue.waiters.iter().position(|waiter| waiter.place.session == Some(session));
    let before =
        before.filter(|before| *before > 0).map(|before| format!("{} before us", count(before, "waiter")));
    match [holder, before].into_iter().flatten().collect::<Vec<_>>() {
        known if known.is_empty() => String::new(),
        known => format!(" ({})", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queue(holders: u64, label: &str, sessions: &[&str]) -> Queue {
        let position = |session: &str, label: &str| {
            json!({
                "position": 1, "path": "/l/a", "session": session, "token": "3", "label": label, "address": null,
                "mode": "exclusive", "permits": null, "owner": null, "acquired": true, "since_ms": 0,
                "held_ms": 65_000, "waited_ms": 0, "revoke_at_ms": null, "waits_for": null,
            })
        };
        let waiters: Vec<_> = sessions.iter().map(|session| position(session, "w")).collect();
        serde_json::from_value(json!({
            "zxid": 1, "time_ms": 0, "lock": "/l", "limit": null, "delayed_until_ms": null,
            "holder_count": holders, "waiter_count": sessions.len(), "more": false,
            "holders": if holders > 0 { vec![position("0x9", label)] } else { Vec::new() }, "waiters": waiters,
        }))
        .unwrap()
    }

    #[test]
    fn a_waiter_sees_the_holder_and_the_number_of_earlier_waiters() {
        let own = SessionId(7);
        let summary =
            |holders, label, sessions: &[&str]| queue_summary(&queue(holders, label, sessions), own);
        assert_eq!(summary(1, "worker-7", &["0x7"]), " (held by worker-7 for 1 min 5 s)");
        assert_eq!(
            summary(1, "a\x1b[2Jb", &["0x5", "0x6", "0x7"]),
            " (held by a [2Jb for 1 min 5 s, 2 waiters before us)"
        );
        assert_eq!(summary(3, "", &["0x5"]), " (held by an unnamed client and 2 more for 1 min 5 s)");
        assert_eq!(summary(0, "", &[]), "");
    }
}
