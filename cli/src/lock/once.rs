//! `rowlock once`: runs a command once per interval on one of many hosts, for crontabs and timers.
//!
//! connect -> wait for the end of the interval, if that is near -> note the run -> run the command -> note
//! its end -> release. The interval is a minimum hold of the lock, which the cluster counts from the grant.
//! It counts from the start of the command, which is later where an answer is late: the note says how late,
//! and the next host waits for as long. No host's wall clock takes part. With `--retry-failed` only a run
//! that went well counts: a command that fails is followed by the end of the session, which is no release.

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
/// A command starts at most this long after its note was sent; the note is sent again if its answer is later.
const NOTE_AGE_MAX: Duration = Duration::from_secs(1);
/// Notes that are sent where each answer is late. The end of the run notes how late the last one was.
const NOTES_MAX: u32 = 5;
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
        let runs = RunNotes { retry_failed: self.retry_failed, every: self.every };
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
                let mut rest = runs.rest_by_note(client, &mutex).await;
                if rest.is_zero() {
                    if let Some(guard) = ask_on_terms!(request, self.queued.terms, owner, at_once)? {
                        return Ok(Some(guard));
                    }
                    rest = rest_of_interval(client, &mutex).await;
                }
                let left = asking.left().unwrap_or_default();
                if left.is_zero() || rest > left {
                    return Ok(None);
                }
                time::sleep(rest.max(LOOK_AGAIN).min(left)).await;
            }
        };
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
    every: Duration,
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
    /// Returns once the run is noted: the command is to start now. Waits before that, where an answer to an
    /// earlier run was so late that its interval still lasts.
    pub async fn begin<H: Held>(&self, client: &Client, held: &H) -> NotedRun {
        let key = held.key();
        let lock = key.rsplit_once('/').map_or("/", |(lock, _)| lock).to_owned();
        let place = client.get(&key).await.ok();
        // By the cluster's clock: the place was granted the lock when it was made.
        let granted_ms = place.as_ref().map(|place| place.stat.ctime_ms);
        let label = place.and_then(|place| place.data).unwrap_or_default();
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
        let mut run = NotedRun { lock, key, label, document, begun: time::now() };
        for _ in 0..NOTES_MAX {
            run.begun = time::now();
            run.write(client).await;
            if run.begun.elapsed() <= NOTE_AGE_MAX {
                break;
            }
        }
        run.document["late_ms"] = millis(run.begun.elapsed());
        run
    }

    /// Notes the end of a run. Whether the lock is to be released, so that the interval counts.
    pub async fn end(&self, client: &Client, mut run: NotedRun, code: u8) -> bool {
        // The last change of the data is the note of the start.
        if let Ok(znode) = client.get(&run.lock).await {
            run.document["started_ms"] = znode.stat.mtime_ms.into();
        }
        run.document["state"] = "ended".into();
        run.document["exit"] = code.into();
        run.document["took_ms"] = millis(run.begun.elapsed());
        run.label.push_str(&format!("\nexit={code}"));
        run.write(client).await;
        code == 0 || !self.retry_failed
    }

    /// What is left of the interval since the last start; nothing if it cannot be read.
    async fn rest_by_note(&self, client: &Client, mutex: &Mutex) -> Duration {
        let Ok(znode) = client.get(mutex.path()).await else { return Duration::ZERO };
        let Ok(queue) = client.report_queue(&mutex.server_path(), 1).await else { return Duration::ZERO };
        self.rest_at(znode.data.as_deref(), znode.stat.mtime_ms, queue.time_ms)
    }

    /// The same at a time of the cluster's, with the note that was changed last at `noted_ms`. Until the
    /// minimum hold would have ended by itself nothing is added to it: an operator may have ended it.
    fn rest_at(&self, note: Option<&[u8]>, noted_ms: i64, now_ms: i64) -> Duration {
        let note: Value = note.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let number = |key: &str| note[key].as_i64();
        let started_ms = match note["state"].as_str() {
            Some("ended") if self.retry_failed && number("exit") != Some(0) => None,
            Some("ended") => {
                number("started_ms").zip(number("late_ms")).map(|(at, late)| at.saturating_add(late))
            }
            // A host that died has not noted how late its command was.
            Some("running") if !self.retry_failed => {
                Some(noted_ms.saturating_add(NOTE_AGE_MAX.as_millis() as i64))
            }
            _ => None,
        };
        let end_ms = |from_ms: i64| from_ms.saturating_add(self.every.as_millis() as i64);
        match started_ms.zip(number("granted_ms")) {
            Some((started_ms, granted_ms)) if now_ms >= end_ms(granted_ms) => {
                let rest_ms = end_ms(started_ms).saturating_sub(now_ms).max(0).unsigned_abs();
                // Other programs' data may say anything.
                Duration::from_millis(rest_ms).min(self.every)
            }
            _ => Duration::ZERO,
        }
    }
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
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
    fn an_interval_counts_from_the_start_of_the_command_however_late_that_was() {
        let every = Duration::from_secs(8);
        let rest = |retry_failed, note: Value, noted_ms, now_ms| {
            let runs = RunNotes { retry_failed, every };
            runs.rest_at(Some(note.to_string().as_bytes()), noted_ms, now_ms).as_millis()
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
        // Other programs' data.
        assert_eq!(rest(false, json!("text"), 1_000, 9_000), 0);
        let odd = json!({ "state": "ended", "granted_ms": 0, "started_ms": i64::MAX, "late_ms": 7 });
        assert_eq!(rest(false, odd, 1_000, 9_000), every.as_millis());
        assert_eq!(RunNotes { retry_failed: false, every }.rest_at(None, 1_000, 9_000), Duration::ZERO);
    }

    #[test]
    fn intervals_are_between_a_millisecond_and_a_month() {
        assert_eq!(interval("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(interval("31d"), Ok(Duration::from_secs(31 * 86_400)));
        for wrong in ["", "1", "0s", "32d", "1w", "-1h"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
