//! `rowlock once`: runs a command once per interval on one of many hosts, for crontabs and timers.
//!
//! connect -> wait for the end of the interval, if near -> record the run -> run the command -> record the
//! end of the run -> release. The interval is a minimum hold of the lock, which the cluster counts from the
//! grant. The interval should count from the start of the command, which is later if an answer is late: the
//! record has the delay, and the next host waits that much longer. No host's wall clock takes part. With
//! `--retry-failed` only a successful run counts: after a failed command the session ends without a release.

use std::process::ExitCode;
use std::time::Duration;

use rowlock_client::{Acl, Client, CreateMode, Error, Mutex, Transaction};
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::Queued;
use super::options::{TimeLimit, request_on_terms};
use super::under::CommandMode;
use super::under::Held;
use crate::exit::{Failure, RAN_ELSEWHERE, USAGE};
use crate::moment;
use crate::name::Name;
use crate::print::errln;
use crate::znode::tree;

/// Longest default of `-w`.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time from sending a record to the start of the command; after a slower answer the record is sent
/// again.
const RECORD_AGE_MAX: Duration = Duration::from_secs(1);
/// Most records sent while each answer is late. The record of the end has the delay of the last one.
const RECORDS_MAX: u32 = 5;
/// Bound of what whole milliseconds leave out of the record's time and of its delay.
const ROUNDING: Duration = Duration::from_millis(2);
/// Pause of a waiting host between two checks for the end of a run.
const CHECK_PAUSE: Duration = Duration::from_millis(200);

// The default in clap's attribute is text.
const _: () = assert!(RAN_ELSEWHERE == 80, "the default of -E differs");

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
        let runs = RunRecorder { retry_failed: self.retry_failed, every: self.every };
        let wait = self.queued.waiting.timeout.unwrap_or_else(|| WAIT_MAX.min(self.every / 10));
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            let mutex = self.name.mutex(client);
            create_persistent(client, mutex.path()).await?;
            let at_once = TimeLimit::begin(Some(Duration::ZERO));
            loop {
                let mut request = mutex.request();
                if self.retry_failed {
                    request = request.min_hold_lapses();
                }
                let mut rest = runs.rest_by_record(client, &mutex).await;
                if rest.is_zero() {
                    if let Some(guard) = request_on_terms!(request, self.queued.terms, owner, at_once)? {
                        return Ok(Some(guard));
                    }
                    rest = rest_of_interval(client, &mutex).await;
                }
                let left = limit.left().unwrap_or_default();
                if left.is_zero() || rest > left {
                    return Ok(None);
                }
                time::sleep(rest.max(CHECK_PAUSE).min(left)).await;
            }
        };
        self.queued
            .run_with_mode(&self.name, TimeLimit::begin(Some(wait)), acquire, CommandMode::Once(&runs))
            .await
    }
}

/// Returns the rest of the interval; zero during a run, when the rest is unknown.
///
/// Waiting hosts do not queue: a host that dies in the queue would be granted the lock, and would keep the
/// lock for an interval without a run.
async fn rest_of_interval(client: &Client, mutex: &Mutex) -> Duration {
    let queue = client.report_queue(&mutex.server_path(), 1).await.ok();
    let rest_ms = queue.and_then(|queue| Some(queue.delayed_until_ms? - queue.time_ms));
    rest_ms.map_or(Duration::ZERO, |rest_ms| Duration::from_millis(rest_ms.max(0).unsigned_abs()))
}

fn interval(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_millis(rowlock_proto::lock::MIN_HOLD_MAX_MS.into());
    match moment::duration(text)? {
        time if time < Duration::from_millis(1) => Err("must be more than 0".to_owned()),
        time if time > longest => Err("must be at most 31d".to_owned()),
        time => Ok(time),
    }
}

/// Creates the lock's znode as a persistent znode, unless the znode exists: an acquire would create a
/// container, which would be deleted together with the record of the last run.
async fn create_persistent(client: &Client, path: &str) -> Result<(), Error> {
    let create = || client.create(path, None, CreateMode::Persistent, Acl::open());
    let made = match create().await {
        Err(Error::Rejected(ErrorCode::NoNode)) => {
            tree::create_parents(client, path).await.map_err(|failed| failed.error)?;
            create().await
        }
        made => made,
    };
    match made {
        // A client without the right to create znodes here may still be permitted to acquire.
        Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists | ErrorCode::NoAuth)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Recorder of runs in the data of the lock's znode.
pub struct RunRecorder {
    retry_failed: bool,
    every: Duration,
}

pub struct RunRecord {
    lock: String,
    key: String,
    /// Label of the own queue znode, shown in the history.
    label: String,
    document: Value,
    started: Instant,
}

impl RunRecorder {
    /// Records the start of a run; the caller then starts the command at once. Before that, waits if the
    /// interval still lasts because the command of an earlier run started late.
    pub async fn begin<H: Held>(&self, client: &Client, held: &H) -> RunRecord {
        let key = held.key();
        let lock = key.rsplit_once('/').map_or("/", |(lock, _)| lock).to_owned();
        let position = client.get(&key).await.ok();
        // Creation time of the queue znode by the cluster's clock: the lock was granted at the creation.
        let granted_ms = position.as_ref().map(|znode| znode.stat.ctime_ms);
        let label = position.and_then(|znode| znode.data).unwrap_or_default();
        let label = String::from_utf8_lossy(&label).into_owned();
        if let (Ok(znode), Some(now_ms)) = (client.get(&lock).await, granted_ms) {
            time::sleep(self.rest_at(znode.data.as_deref(), znode.stat.mtime_ms, now_ms)).await;
        }
        let document = json!({
            "state": "running",
            "host": label,
            "token": held.token().to_string(),
            "granted_ms": granted_ms,
            "started_ms": granted_ms,
        });
        let mut run = RunRecord { lock, key, label, document, started: time::now() };
        for _ in 0..RECORDS_MAX {
            run.started = time::now();
            run.write(client).await;
            if run.started.elapsed() <= RECORD_AGE_MAX {
                break;
            }
        }
        run.document["late_ms"] = millis(run.started.elapsed() + ROUNDING);
        run
    }

    /// Records the end of a run. Returns true to release the lock, so that the interval counts.
    pub async fn end(&self, client: &Client, mut run: RunRecord, code: u8) -> bool {
        // The last change of the data is the record of the start.
        if let Ok(znode) = client.get(&run.lock).await {
            run.document["started_ms"] = znode.stat.mtime_ms.into();
        }
        run.document["state"] = "ended".into();
        run.document["exit"] = code.into();
        run.document["took_ms"] = millis(run.started.elapsed());
        run.label.push_str(&format!("\nexit={code}"));
        run.write(client).await;
        code == 0 || !self.retry_failed
    }

    /// Returns the rest of the interval since the last recorded start; zero if there is no readable record.
    async fn rest_by_record(&self, client: &Client, mutex: &Mutex) -> Duration {
        let Ok(znode) = client.get(mutex.path()).await else { return Duration::ZERO };
        let Ok(queue) = client.report_queue(&mutex.server_path(), 1).await else { return Duration::ZERO };
        self.rest_at(znode.data.as_deref(), znode.stat.mtime_ms, queue.time_ms)
    }

    /// Returns the rest of the interval at `now_ms`, by a record last changed at `recorded_ms` (both by the
    /// cluster's clock). Returns zero before the end of the minimum hold itself: an operator may have ended
    /// the hold.
    fn rest_at(&self, record: Option<&[u8]>, recorded_ms: i64, now_ms: i64) -> Duration {
        let record: Value = record.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let number = |key: &str| record[key].as_i64();
        let started_ms = match record["state"].as_str() {
            Some("ended") if self.retry_failed && number("exit") != Some(0) => None,
            Some("ended") => {
                number("started_ms").zip(number("late_ms")).map(|(at, late)| at.saturating_add(late))
            }
            // A dead host has not recorded the delay of its command.
            Some("running") if !self.retry_failed => {
                Some(recorded_ms.saturating_add(RECORD_AGE_MAX.as_millis() as i64))
            }
            _ => None,
        };
        let end_ms = |from_ms: i64| from_ms.saturating_add(self.every.as_millis() as i64);
        match started_ms.zip(number("granted_ms")) {
            Some((started_ms, granted_ms)) if now_ms >= end_ms(granted_ms) => {
                let rest_ms = end_ms(started_ms).saturating_sub(now_ms).max(0).unsigned_abs();
                // Foreign data may contain any number.
                Duration::from_millis(rest_ms).min(self.every)
            }
            _ => Duration::ZERO,
        }
    }
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}

impl RunRecord {
    /// Writes the record only while the own queue znode exists: a later run's record is never overwritten.
    async fn write(&self, client: &Client) {
        let (data, label) = (self.document.to_string(), self.label.clone());
        let transaction = Transaction::new()
            .check(&*self.key, None)
            .set(&*self.lock, Some(data.into()), None)
            .set(&*self.key, Some(label.into()), None);
        if let Err(e) = client.commit(transaction).await {
            errln!("rowlock: {}: cannot record the run: {e}", self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_counts_from_the_start_of_a_late_command() {
        let every = Duration::from_secs(8);
        let rest = |retry_failed, record: Value, recorded_ms, now_ms| {
            let runs = RunRecorder { retry_failed, every };
            runs.rest_at(Some(record.to_string().as_bytes()), recorded_ms, now_ms).as_millis()
        };
        let ended = |exit: u8, late_ms: u64| json!({ "state": "ended", "exit": exit, "granted_ms": 900, "started_ms": 1_000, "late_ms": late_ms });
        // The command started at 6.4 s although the lock was granted at 0.9 s.
        assert_eq!(rest(false, ended(0, 5_400), 20_000, 8_900), 5_500);
        assert_eq!(rest(false, ended(0, 5_400), 20_000, 14_400), 0);
        assert_eq!(rest(false, ended(0, 5_400), 20_000, 8_899), 0, "an operator has ended the interval");
        assert_eq!(rest(false, ended(1, 0), 20_000, 8_950), 50);
        assert_eq!(rest(true, ended(1, 0), 20_000, 8_950), 0, "a run that failed does not count");
        assert_eq!(rest(true, ended(0, 0), 20_000, 8_950), 50);
        let running = || json!({ "state": "running", "granted_ms": 900 });
        assert_eq!(
            rest(false, running(), 1_000, 9_000),
            1_000,
            "it may have started a second after its note"
        );
        assert_eq!(rest(true, running(), 1_000, 9_000), 0, "nor one whose host died");
        // Data of foreign programs.
        assert_eq!(rest(false, json!("text"), 1_000, 9_000), 0);
        let odd = json!({ "state": "ended", "granted_ms": 0, "started_ms": i64::MAX, "late_ms": 7 });
        assert_eq!(rest(false, odd, 1_000, 9_000), every.as_millis());
        assert_eq!(RunRecorder { retry_failed: false, every }.rest_at(None, 1_000, 9_000), Duration::ZERO);
    }

    #[test]
    fn intervals_are_between_a_millisecond_and_a_month() {
        assert_eq!(interval("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(interval("31d"), Ok(Duration::from_secs(31 * 86_400)));
        for wrong in ["", "0", "0s", "32d", "1w", "-1h"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
