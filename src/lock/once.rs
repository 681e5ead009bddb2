//! `rowlock once`: runs a command once per interval on one of many hosts, for crontabs and timers.
//!
//! connect -> wait for the end of the interval, if that is near -> note the run -> run the command -> note
//! its end -> release. The interval is a minimum hold of the lock: the cluster counts it from the grant, and
//! no host's wall clock takes part. With `--retry-failed` it counts after a run that went well only: a
//! command that fails is followed by the end of the session, which is no release.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Error, Mutex, Transaction};
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::held::Held;
use super::options::{Asking, ask_on_terms};
use super::queued::Queued;
use super::under::Around;
use crate::exit::{Failure, RAN_ELSEWHERE, USAGE};
use crate::moment;
use crate::name::Name;
use crate::print::errln;
use crate::znode::tree;

/// The longest default of `-w`.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a host that waits asks whether a run that goes on has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

// A default is text.
const _: () = assert!(RAN_ELSEWHERE == 80, "the default of -E is another one");

/// Run a command once per interval, on one of many hosts
#[derive(clap::Args)]
#[command(mut_arg("conflict_exit_code", |arg| {
    arg.default_value("80").help("Exit code when it has run in this interval, or is running, on another host")
}))]
#[command(mut_arg("timeout", |arg| {
    arg.help("Wait at most this many seconds for the end of the interval [default: a tenth of it, at most 60]")
}))]
#[command(mut_arg("min_hold", |arg| arg.hide(true).conflicts_with("every")))]
pub struct Once {
    /// Minimum time between two starts, across all hosts: 90s, 10m, 1h, 7d (at most 31d)
    #[arg(long, value_name = "TIME", value_parser = interval)]
    every: Duration,
    #[command(flatten)]
    name: Name,
    /// A run that fails, or whose host dies, does not count: the next attempt runs the command
    #[arg(long)]
    retry_failed: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Once {
    /// Exits with the command's code.
    pub async fn run(mut self) -> Result<ExitCode, Failure> {
        if !self.queued.has_command() {
            return Err(Failure::new(USAGE, "no command is given; add -- CMD, or -c COMMAND"));
        }
        self.queued.terms.min_hold = Some(self.every);
        let wait = self.queued.waiting.timeout.unwrap_or_else(|| WAIT_MAX.min(self.every / 10));
        let ask = async |client: &Client, owner, asking: &Asking| {
            let mutex = self.name.mutex(client);
            make_lasting(client, mutex.path()).await?;
            let at_once = Asking::begin(Some(Duration::ZERO));
            loop {
                let mut request = mutex.request();
                if self.retry_failed {
                    request = request.min_hold_lapses();
                }
                if let Some(guard) = ask_on_terms!(request, self.queued.terms, owner, at_once)? {
                    return Ok(Some(guard));
                }
                let (left, rest) =
                    (asking.left().unwrap_or_default(), rest_of_interval(client, &mutex).await);
                if left.is_zero() || rest > left {
                    return Ok(None);
                }
                time::sleep(rest.max(LOOK_AGAIN).min(left)).await;
            }
        };
        let runs = RunNotes { retry_failed: self.retry_failed };
        self.queued.run_around(&self.name, Asking::begin(Some(wait)), ask, Around::Once(&runs)).await
    }
}

/// What is left of the interval; unknown while a run goes on.
///
/// Hosts that wait take no place in the queue: one that dies there would be granted the lock, and would keep
/// it for an interval without a run.
async fn rest_of_interval(client: &Client, mutex: &Mutex) -> Duration {
    let queue = client.report_queue(&mutex.server_path(), 1).await.ok();
    let rest_ms = queue.and_then(|queue| Some(queue.delayed_until_ms? - queue.time_ms));
    rest_ms.map_or(Duration::ZERO, |rest_ms| Duration::from_millis(rest_ms.max(0).unsigned_abs()))
}

fn interval(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_millis(rowlock_proto::lock::MIN_HOLD_MAX_MS.into());
    match moment::duration(text) {
        None => Err("use a number and s, m, h or d, e.g. 1h".to_owned()),
        Some(time) if time < Duration::from_millis(1) => Err("must be more than 0".to_owned()),
        Some(time) if time > longest => Err("must be at most 31d".to_owned()),
        Some(time) => Ok(time),
    }
}

/// Makes the lock's znode, if it is not there, as one that stays: an acquire would make a container, which
/// goes with the last run noted in it.
async fn make_lasting(client: &Client, path: &str) -> Result<(), Error> {
    let create = || client.create(path, None, CreateMode::Persistent, Acl::open());
    let made = match create().await {
        Err(Error::Rejected(ErrorCode::NoNode)) => {
            tree::make_parents(client, path).await?;
            create().await
        }
        made => made,
    };
    match made {
        // Without the right to create znodes here the acquire may still be permitted.
        Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists | ErrorCode::NoAuth)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Notes each run in the data of the lock's znode.
pub struct RunNotes {
    retry_failed: bool,
}

pub struct NotedRun {
    lock: String,
    key: String,
    /// Of our place, as the history shows it.
    label: String,
    document: Value,
    begun: Instant,
}

impl RunNotes {
    pub async fn begin<H: Held>(&self, client: &Client, held: &H) -> NotedRun {
        let key = held.key();
        let lock = key.rsplit_once('/').map_or("/", |(lock, _)| lock).to_owned();
        let place = client.get(&key).await.ok();
        // By the cluster's clock: the place was granted the lock when it was made.
        let started_ms = place.as_ref().map(|place| place.stat.ctime_ms);
        let label = place.and_then(|place| place.data).unwrap_or_default();
        let label = String::from_utf8_lossy(&label).into_owned();
        let document = json!({
            "state": "running",
            "host": label,
            "token": held.token().to_string(),
            "started_ms": started_ms,
        });
        let run = NotedRun { lock, key, label, document, begun: time::now() };
        run.write(client).await;
        run
    }

    /// Notes the end of a run. Whether the lock is to be released, so that the interval counts.
    pub async fn end(&self, client: &Client, mut run: NotedRun, code: u8) -> bool {
        run.document["state"] = "ended".into();
        run.document["exit"] = code.into();
        run.document["took_ms"] = u64::try_from(run.begun.elapsed().as_millis()).unwrap_or(u64::MAX).into();
        run.label.push_str(&format!("\nexit={code}"));
        run.write(client).await;
        code == 0 || !self.retry_failed
    }
}

impl NotedRun {
    /// Takes effect only while our place is in the queue: a later run's note is never overwritten.
    async fn write(&self, client: &Client) {
        let (data, label) = (self.document.to_string(), self.label.clone());
        let transaction = Transaction::new()
            .check(&*self.key, None)
            .set(&*self.lock, Some(data.into()), None)
            .set(&*self.key, Some(label.into()), None);
        if let Err(e) = client.commit(transaction).await {
            errln!("rowlock: {}: the run could not be noted: {e}", self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_between_a_millisecond_and_a_month() {
        assert_eq!(interval("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(interval("31d"), Ok(Duration::from_secs(31 * 86_400)));
        for wrong in ["", "1", "0s", "32d", "1w", "-1h"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
