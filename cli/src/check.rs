//! `rowlock check`: measures a machine's fitness for a node, before a node runs or beside one.
//!
//! A commit takes at least a flush and a round trip: no setting makes a lock faster than their sum.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rowlock_coordinator::config::RaftConfig;
use rowlock_env::disk::Dir;
use rowlock_env::net::{self, Stream};
use rowlock_env::time;
use rowlock_wal::Acknowledge;

use crate::cluster::Cluster;
use crate::exit::{DATA_FOLDER, Failure, IO, REFUSED};
use crate::moment::duration;
use crate::paint::Paint;
use crate::print::outln;

/// Check whether this machine can run a node
#[derive(clap::Args)]
pub struct Check {
    #[command(subcommand)]
    command: CheckCommand,
}

#[derive(clap::Subcommand)]
enum CheckCommand {
    Perf(Perf),
}

impl Check {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            CheckCommand::Perf(perf) => perf.run().await,
        }
    }
}

/// Bytes per flush: the log entry of a few commands.
const BLOCK: usize = 4 << 10;
/// The file is preallocated like the log's segments, and overwritten in circles.
const FILE_BYTES: u64 = 4 << 20;
const FILE: &str = "rowlock-check-perf";
/// Round trips per node, with a pause between two.
const ROUND_TRIPS: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);
const CONNECT: Duration = Duration::from_secs(1);
/// Two votes, the leader's confirmation on two nodes, the leader's first entry, and a flush in progress.
const FLUSHES_OF_A_FAILOVER: u32 = 6;

/// Measure disk flushes and round trips to the nodes, and show how long a failover takes
#[derive(clap::Args)]
struct Perf {
    /// Folder on the disk to measure: that of the node's data
    #[arg(long, value_name = "DIR", env = "ROWLOCK_DATA", default_value = ".")]
    data: PathBuf,
    /// How long to measure
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "3s")]
    how_long: Duration,
    #[command(flatten)]
    cluster: Cluster,
}

/// Times of one kind, sorted.
struct Times(Vec<Duration>);

impl Times {
    fn of(mut all: Vec<Duration>) -> Option<Times> {
        all.sort_unstable();
        (!all.is_empty()).then_some(Times(all))
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }

    fn text(&self) -> String {
        let [half, most, longest] = [50, 99, 100].map(|percent| ms(self.percentile(percent)));
        format!("{half}, 99 of 100 within {most}, longest {longest}")
    }
}

impl Perf {
    /// Exits with 0 if the election timers fit, else with 1.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let file = self.cluster.file()?;
        let (raft, locks) = file.map(|file| (file.raft, file.locks)).unwrap_or_default();
        let flushes = flushes(&self.data, self.how_long)?;
        let count = flushes.0.len();
        outln!(
            "disk     {}: a flush of 4 KiB takes {} ({count} flushes)",
            self.data.display(),
            flushes.text()
        );
        let mut trips = Vec::new();
        let endpoints = self.cluster.endpoints()?;
        for endpoint in endpoints.split('/').next().unwrap_or_default().split(',') {
            match round_trips(endpoint.trim()).await {
                Ok(times) => {
                    outln!("network  {endpoint}: a round trip takes {}", times.text());
                    trips.push(times);
                }
                Err(e) => outln!("network  {endpoint}: not measured: {e}"),
            }
        }
        let nearest = trips.iter().map(|times| times.percentile(50)).min().unwrap_or_default();
        let least = ms(flushes.percentile(50) + nearest);
        outln!("a commit takes {least} at least: a flush, and a round trip to the nearest node");
        if locks.acknowledge() != Acknowledge::Flushed && !trips.is_empty() {
            let (trip, within) = (ms(nearest), locks.flush_within_ms);
            outln!(
                "a commit about locks takes {trip} at least: [locks] acknowledge = \"written\", flushed within {within} ms"
            );
        }
        let farthest = trips.iter().map(|times| times.percentile(99)).max();
        let wrong = misfits(&raft, farthest);
        outln!("{}", failover(&raft, flushes.percentile(100)));
        let elections = format!(
            "elections of {} and {} ms, heartbeats of {} ms",
            raft.election_timeout_min_ms, raft.election_timeout_max_ms, raft.heartbeat_ms
        );
        if wrong.is_empty() {
            outln!("{}", Paint::stdout().good(&format!("{elections}: they fit")));
            return Ok(ExitCode::SUCCESS);
        }
        let why = wrong.join("; ");
        Err(Failure::new(REFUSED, format!("{elections}: {why} (docs/configuration.md, [raft])")))
    }
}

/// Checks the timers by the rule of docs/configuration.md: a heartbeat interval exceeds a round trip. A slow
/// disk needs no other timers: elections wait for its flushes.
fn misfits(raft: &RaftConfig, slow_trip: Option<Duration>) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(trip) = slow_trip.filter(|trip| Duration::from_millis(raft.heartbeat_ms) < *trip) {
        let fits = trip.as_millis() + 10;
        wrong.push(format!(
            "set heartbeat_ms to {fits} or more, and the elections to three times that or more"
        ));
    }
    wrong
}

/// Describes how long the cluster can be without a leader.
fn failover(raft: &RaftConfig, longest_flush: Duration) -> String {
    let votes = FLUSHES_OF_A_FAILOVER * longest_flush;
    let killed = Duration::from_millis(2 * raft.heartbeat_ms) + votes;
    let silent = Duration::from_millis(raft.election_timeout_max_ms) + votes;
    let votes = ms(votes);
    format!(
        "a leader that is killed is replaced after about {}, one that is silent (cut off, stopped) after up to {}; \
         {votes} of it are {FLUSHES_OF_A_FAILOVER} flushes of the longest time",
        ms(killed),
        ms(silent)
    )
}

fn flushes(folder: &Path, how_long: Duration) -> Result<Times, Failure> {
    let unusable =
        |e| Failure::new(DATA_FOLDER, format!("{}: {e}; name a folder with --data", folder.display()));
    let dir = Dir::open(folder).map_err(unusable)?;
    // Removes the file of an interrupted run.
    if dir.exists(FILE) {
        dir.remove(FILE).map_err(unusable)?;
    }
    let file = dir.create_new(FILE).map_err(unusable)?;
    let measured = (|| {
        file.allocate(FILE_BYTES)?;
        file.sync_all()?;
        let (started, mut times, mut at) = (time::now(), Vec::new(), 0);
        while started.elapsed() < how_long {
            let start = time::now();
            file.write_all_at(&[0x5a; BLOCK], at)?;
            file.sync_data()?;
            times.push(start.elapsed());
            at = (at + BLOCK as u64) % FILE_BYTES;
        }
        Ok(times)
    })();
    let removed = dir.remove(FILE);
    let failed = |e: std::io::Error| Failure::new(IO, format!("{}: {e}", folder.display()));
    let times = measured.map_err(failed)?;
    removed.map_err(failed)?;
    Times::of(times).ok_or_else(|| Failure::new(IO, "no flush came to its end; measure for longer (--for)"))
}

/// Measures the time to connect: the remote kernel answers, so a busy node does not distort the result.
async fn round_trips(endpoint: &str) -> std::io::Result<Times> {
    // Resolves the name outside of the measured time.
    let found = time::timeout(CONNECT, net::addresses(endpoint)).await;
    let found = found.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
    let nowhere = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    let address = found.first().ok_or_else(nowhere)?.to_string();
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let started = time::now();
        drop(Stream::connect(&address, CONNECT).await?);
        times.push(started.elapsed());
        time::sleep(PAUSE).await;
    }
    Ok(Times::of(times).expect("Invariant: there is a round trip"))
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_exceed_round_trips_and_slow_disks_delay_failover() {
        let raft = RaftConfig::default();
        let count = |trip: Option<u64>| misfits(&raft, trip.map(Duration::from_millis)).len();
        assert_eq!(
            [count(None), count(Some(raft.heartbeat_ms)), count(Some(raft.heartbeat_ms + 1))],
            [0, 0, 1]
        );
        let text = failover(&raft, Duration::from_millis(415));
        let silent = format!("up to {:.2} ms", (raft.election_timeout_max_ms + 6 * 415) as f64);
        assert!(text.contains(&silent) && text.contains("2490.00 ms of it"), "{text}");
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = Times::of((1..=200).rev().map(Duration::from_millis).collect()).unwrap();
        assert_eq!([50, 99, 100].map(|p| times.percentile(p).as_millis()), [101, 199, 200]);
        assert!(Times::of(Vec::new()).is_none());
        assert_eq!(Times::of(vec![Duration::from_millis(7)]).unwrap().percentile(99).as_millis(), 7);
    }
}
