//! `rowlock top`: shows a line per node with its rates, then the most contended locks; refreshes until a
//! signal.
//!
//! All data comes from the nodes' HTTP listeners: `/v1/status`, `/metrics`, and `/v1/locks` of the leader.
//! Rates are differences between two answers of one node: they cover the interval between both scans.

mod screen;

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::task;
use rowlock_env::time::{self, Instant};
use serde_json::{Value, json};

use self::screen::Screen;
use crate::cluster::Cluster;
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::http_get::{self, HttpAccess};
use crate::http_get::{Addresses, HttpNodes};
use crate::moment::duration;
use crate::print::print;
use crate::signals::Stop;
use crate::status::Report;
use crate::znode::print_json;

/// Deadline of one answer. A node answers from memory: a second is long.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Shortest interval: each scan is work for the nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Longest interval between the two scans of `--once`.
const ONCE_AFTER: Duration = Duration::from_secs(1);

/// Show live rates of the nodes and the most contended locks
///
/// Shows locks that world:anyone, or the owner of the token, may read.
#[derive(clap::Args)]
pub struct Top {
    /// Time between two refreshes of the screen
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    interval: Duration,
    /// Sample for one second, print once, and exit
    #[arg(long)]
    once: bool,
    /// Maximum number of locks; at a terminal, as many as fit
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    locks: u32,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    nodes: HttpNodes,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    /// One JSON document per sample and line.
    Json,
}

struct Scan {
    /// Samples or errors in the order of the addresses.
    nodes: Vec<(String, Result<Sample, String>)>,
    /// Report on locks, or the reason for its absence.
    locks: Result<Value, String>,
}

/// Sample of a node with its rates since the previous sample, or the reason for its absence.
type Answer = Result<(Sample, Rates), String>;

/// Scan with the rates since the previous scan.
struct Frame {
    nodes: Vec<(String, Answer)>,
    locks: Result<Value, String>,
}

impl Top {
    /// Exits with 0 at Ctrl-C; with `--once`, exits with 69 if a node does not serve, else with 0.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let addresses = self.nodes.find(&self.cluster)?.ok_or_else(|| {
            Failure::new(USAGE, "which nodes? name their HTTP addresses with --http, or use --config")
        })?;
        let mut stop = Stop::listen()?;
        tokio::select! {
            ended = self.refresh(&addresses) => ended,
            _ = stop.signal() => Ok(ExitCode::SUCCESS),
        }
    }

    async fn refresh(&self, addresses: &Addresses) -> Result<ExitCode, Failure> {
        let interval = self.interval.max(INTERVAL_MIN);
        let mut before = self.scan(addresses).await;
        if !self.once && self.output == Output::Table {
            // Draws before there are rates: a person sees at once that `top` runs.
            self.show(&before.with_rates(&before))?;
        }
        loop {
            time::sleep(if self.once { interval.min(ONCE_AFTER) } else { interval }).await;
            let now = self.scan(addresses).await;
            let shown = now.with_rates(&before);
            self.show(&shown)?;
            if self.once {
                let serves = |(_, node): &(String, Answer)| {
                    node.as_ref().is_ok_and(|(sample, _)| sample.report.serving)
                };
                let all = shown.nodes.iter().all(serves);
                return Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) });
            }
            before = now;
        }
    }

    async fn scan(&self, addresses: &Addresses) -> Scan {
        let fetches: Vec<_> = addresses
            .all
            .iter()
            .map(|addr| {
                let (addr, access) = (addr.clone(), addresses.access.clone());
                task::spawn("top", async move { Sample::fetch(&addr, &access).await })
            })
            .collect();
        let mut nodes = Vec::with_capacity(fetches.len());
        for (addr, answer) in addresses.all.iter().zip(fetches) {
            let sample = answer.await.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            nodes.push((addr.clone(), sample.map_err(|e| e.to_string())));
        }
        let locks = self.fetch_locks(&nodes, addresses).await;
        Scan { nodes, locks }
    }

    /// Fetches the locks from the leader, the first to apply changes, else from any serving node.
    async fn fetch_locks(
        &self,
        nodes: &[(String, Result<Sample, String>)],
        addresses: &Addresses,
    ) -> Result<Value, String> {
        if self.locks == 0 {
            return Ok(json!({ "locks": [] }));
        }
        let serving = |leads: bool| {
            nodes.iter().find(|(_, node)| {
                node.as_ref()
                    .is_ok_and(|sample| sample.report.serving && (sample.report.role == "leader" || !leads))
            })
        };
        let (addr, _) =
            serving(true).or_else(|| serving(false)).ok_or_else(|| "no node serves clients".to_owned())?;
        let path = format!("/v1/locks?limit={}", self.locks);
        http_get::json(addr, &path, &addresses.access, ANSWER_DEADLINE).await.map_err(|e| e.to_string())
    }

    fn show(&self, shown: &Frame) -> Result<(), Failure> {
        match self.output {
            Output::Json => print_json(&screen::document(shown)),
            Output::Table => print(Screen::of_stdout(!self.once).draw(shown).as_bytes()),
        }
    }
}

impl Scan {
    /// Adds the rates since the scan `before`.
    fn with_rates(&self, before: &Scan) -> Frame {
        let nodes = self.nodes.iter().zip(&before.nodes).map(|((addr, now), (_, before))| {
            let node = now.as_ref().map_err(Clone::clone).map(|now| {
                let rates = before.as_ref().map(|before| now.since(before)).unwrap_or_default();
                (now.clone(), rates)
            });
            (addr.clone(), node)
        });
        Frame { nodes: nodes.collect(), locks: self.locks.clone() }
    }
}

#[derive(Clone)]
struct Sample {
    report: Report,
    metrics: Metrics,
    at: Instant,
}

/// Rates of a node, per second or within the time between two samples. `None`: unknown because there was no
/// earlier sample, the node was restarted, or nothing happened.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rates {
    /// Answered requests of clients, plus requests for locks by HTTP.
    requests: Option<f64>,
    /// Grants of locks applied by this node.
    grants: Option<f64>,
    /// Lower bound of the slowest hundredth of the requests.
    request_p99: Option<Duration>,
    flush_p99: Option<Duration>,
    /// Requests slower than `slow_request`.
    slow: Option<f64>,
}

/// Samples of a page in the Prometheus text format, by name with labels.
#[derive(Clone, Debug, Default)]
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn parse(text: &str) -> Metrics {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Metrics(lines.filter_map(sample).collect())
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Returns upper bounds in seconds with the number of values at or below each.
    fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let prefix = format!("{name}_bucket{{le=\"");
        let bucket = |(key, count): (&String, &f64)| {
            let bound = key.strip_prefix(&prefix)?.strip_suffix("\"}")?;
            Some((if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? }, *count))
        };
        let mut all: Vec<(f64, f64)> = self.0.iter().filter_map(bucket).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }
}

impl Sample {
    /// Fetches a sample from the node's HTTP listener at `addr`.
    async fn fetch(addr: &str, access: &HttpAccess) -> io::Result<Sample> {
        let report = Report::fetch(addr, access).await?;
        let text = http_get::text(addr, "/metrics", access, ANSWER_DEADLINE).await?;
        Ok(Sample { report, metrics: Metrics::parse(&text), at: time::now() })
    }

    /// Returns the rates since `before`, a sample of the same node.
    fn since(&self, before: &Sample) -> Rates {
        rates(&self.metrics, &before.metrics, self.at.saturating_since(before.at))
    }
}

fn rates(now: &Metrics, before: &Metrics, between: Duration) -> Rates {
    let same_process = now.get("process_start_time_seconds") == before.get("process_start_time_seconds");
    if !same_process || between.is_zero() {
        return Rates::default();
    }
    let more = |name: &str| {
        let difference = now.get(name)? - before.get(name)?;
        (difference >= 0.0).then_some(difference)
    };
    let per_second = |name: &str| more(name).map(|count| count / between.as_secs_f64());
    Rates {
        requests: per_second("rowlock_request_seconds_count")
            .map(|rate| rate + per_second("rowlock_api_requests_total").unwrap_or_default()),
        grants: per_second("rowlock_lock_grants_total"),
        request_p99: p99(now, before, "rowlock_request_seconds"),
        flush_p99: p99(now, before, "rowlock_wal_fsync_seconds"),
        slow: more("rowlock_slow_requests_total"),
    }
}

/// Returns the upper bound of the bucket with the 99th percentile of the values between both samples.
fn p99(now: &Metrics, before: &Metrics, name: &str) -> Option<Duration> {
    let (now, before) = (now.buckets(name), before.buckets(name));
    let new: Vec<(f64, f64)> = now.iter().zip(&before).map(|(a, b)| (a.0, a.1 - b.1)).collect();
    let all = new.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let (bound, _) = new.iter().find(|(_, count)| *count >= 0.99 * all)?;
    // Beyond the last bound, show that bound.
    let finite = if bound.is_finite() { *bound } else { new[new.len().checked_sub(2)?].0 };
    Some(Duration::from_secs_f64(finite))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(start: u32, requests: u32, fast: u32, slow: u32) -> Metrics {
        let all = fast + slow;
        Metrics::parse(&format!(
            "# TYPE x counter\nprocess_start_time_seconds {start}\nrowlock_request_seconds_count {requests}\n\
             rowlock_wal_fsync_seconds_bucket{{le=\"0.001\"}} {fast}\n\
             rowlock_wal_fsync_seconds_bucket{{le=\"0.01\"}} {all}\n\
             rowlock_wal_fsync_seconds_bucket{{le=\"+Inf\"}} {all}\n"
        ))
    }

    #[test]
    fn rates_cover_only_the_time_between_two_samples() {
        let (before, now) = (page(1, 100, 1_000, 1_000), page(1, 300, 1_100, 1_000));
        let seen = rates(&now, &before, Duration::from_secs(2));
        assert_eq!(seen.requests, Some(100.0));
        assert_eq!(seen.flush_p99, Some(Duration::from_millis(1)), "all slow ones were before");
        let slower = rates(&page(1, 300, 1_100, 1_050), &before, Duration::from_secs(2));
        assert_eq!(slower.flush_p99, Some(Duration::from_millis(10)));
        assert_eq!(seen.grants, None, "the page lacks the metric");
    }

    #[test]
    fn a_node_that_was_restarted_has_no_rates_yet() {
        let (before, now) = (page(1, 100, 5, 5), page(2, 300, 9, 9));
        assert_eq!(rates(&now, &before, Duration::from_secs(2)), Rates::default());
    }

    #[test]
    fn an_idle_node_has_a_rate_of_zero_and_no_quantile() {
        let seen = rates(&page(1, 7, 3, 3), &page(1, 7, 3, 3), Duration::from_secs(1));
        assert_eq!((seen.requests, seen.flush_p99), (Some(0.0), None));
    }
}
