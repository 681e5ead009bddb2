//! Status and metrics of one node at one moment, and the rates between two such samples.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rowlock_env::time::{self, Instant};

use super::ANSWER_DEADLINE;
use crate::http_get::{self, HttpAccess};
use crate::report::Report;

#[derive(Clone)]
pub(super) struct Sample {
    pub(super) report: Report,
    metrics: Metrics,
    at: Instant,
}

/// Rates of a node, per second or within the time between two samples. `None`: unknown because there was no
/// earlier sample, the node was restarted, or nothing happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Answered requests of clients, plus requests for locks by HTTP.
    pub(super) requests: Option<f64>,
    /// Grants of locks applied by this node.
    pub(super) grants: Option<f64>,
    /// Lower bound of the slowest hundredth of the requests.
    pub(super) request_p99: Option<Duration>,
    pub(super) flush_p99: Option<Duration>,
    /// Requests slower than `slow_request`.
    pub(super) slow: Option<f64>,
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
    pub(super) async fn fetch(addr: &str, access: &HttpAccess) -> io::Result<Sample> {
        let report = Report::fetch(addr, access).await?;
        let text = http_get::text(addr, "/metrics", access, ANSWER_DEADLINE).await?;
        Ok(Sample { report, metrics: Metrics::parse(&text), at: time::now() })
    }

    /// Returns the rates since `before`, a sample of the same node.
    pub(super) fn since(&self, before: &Sample) -> Rates {
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
