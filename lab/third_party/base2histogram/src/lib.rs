//! The part of the crate `base2histogram` that openraft calls: counts of values by their size.
//!
//! Values below 8 are counted one by one. Above, each power of two is divided into four buckets, so a
//! percentile is at most a quarter too small. A histogram has as many buckets as its largest value needs,
//! 252 at most.

use std::fmt;
use std::marker::PhantomData;

/// Values below this have a bucket each.
const EXACT: u64 = 8;
/// Buckets of a power of two.
const PARTS: u64 = 4;

/// Counts of values by their size. The type parameter names slots in the published crate; openraft has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    counts: Vec<u64>,
    slots: PhantomData<T>,
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Histogram { counts: Vec::new(), slots: PhantomData }
    }
}

impl<T> Histogram<T> {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Histogram::default()
    }

    /// Counts a value once.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        let bucket = bucket(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
    }

    /// Returns how many values were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the lowest value of the bucket that contains this quantile; 0 if there are no values.
    fn permille(&self, share: u64) -> u64 {
        let rank = (u128::from(self.total()) * u128::from(share)).div_ceil(1_000);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen > 0 && seen >= rank
        });
        found.map_or(0, lowest)
    }

    /// Returns the percentiles that openraft shows.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.permille(1),
            p1: self.permille(10),
            p5: self.permille(50),
            p10: self.permille(100),
            p50: self.permille(500),
            p90: self.permille(900),
            p99: self.permille(990),
            p99_9: self.permille(999),
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let power = u64::from(value.ilog2());
    let part = value >> (power - PARTS.ilog2() as u64) & (PARTS - 1);
    (EXACT + (power - u64::from(EXACT.ilog2())) * PARTS + part) as usize
}

/// The lowest value of a bucket.
fn lowest(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let (power, part) = ((bucket - EXACT) / PARTS + u64::from(EXACT.ilog2()), (bucket - EXACT) % PARTS);
    (PARTS + part) << (power - u64::from(PARTS.ilog2()))
}

/// Percentiles of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PercentileStats { samples, p50, p90, p99, p99_9, .. } = self;
        write!(f, "[samples: {samples}, P50: {p50}, P90: {p90}, P99: {p99}, P99.9: {p99_9}]")
    }
}

/// Named histograms, displayed as one line of percentiles each.
#[derive(Clone, Debug, Default)]
pub struct AsciiChart(Vec<(String, Histogram)>);

impl AsciiChart {
    /// Creates an empty chart.
    pub fn new() -> Self {
        AsciiChart::default()
    }

    /// Adds a named histogram.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "openraft calls it by this name")]
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.0.push((name.to_owned(), histogram));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, of)| writeln!(f, "{name}: {}", of.percentile_stats()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_whose_lowest_value_is_at_most_a_quarter_smaller() {
        let values = (0..10_000).chain((13..64).flat_map(|power| {
            let one = 1_u64 << power;
            [one - 1, one, one + one / 4 - 1, one + one / 4, one + one / 2, one + (one - 1)]
        }));
        for value in values.chain([u64::MAX]) {
            let (low, next) = (lowest(bucket(value)), bucket(value) + 1);
            assert!(low <= value && value - low <= low / 4, "{value} in the bucket of {low}");
            assert!(next == 252 || value < lowest(next), "{value} belongs to a later bucket");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_counted_values() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile_stats().p99, 0);
        (1..=1_000).for_each(|value| histogram.record(value));
        let PercentileStats { samples, p0_1, p50, p99_9, .. } = histogram.percentile_stats();
        assert_eq!((samples, p0_1, p50, p99_9), (1_000, 1, 448, 896));
        histogram.record_n(5, 1_000_000);
        assert_eq!(histogram.percentile_stats().p99, 5);
        assert_eq!(histogram.total(), 1_001_000);
    }
}
