//! Latencies of many calls: a histogram to three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Histogram in microseconds, up to a minute.
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Latency(Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are in order"))
    }
}

impl Latency {
    /// Records a call. A duration beyond a minute counts as a minute.
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds the calls of `other`.
    pub fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("the bounds are the same");
    }

    /// Returns the quantile in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }
}
