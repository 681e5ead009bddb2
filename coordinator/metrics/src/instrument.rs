//! Instruments of [`super::Metrics`]: counter, gauge, histograms. A recording is a few relaxed atomic adds;
//! it never locks, allocates or fails. The one exception is [`SilenceGauge`].

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_proto::NodeId;
use serde::{Deserialize, Serialize};

use crate::memory::Part;

/// A number of events; only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Replaces the value (at most `i64::MAX`).
    pub fn set(&self, value: u64) {
        self.0.store(i64::try_from(value).unwrap_or(i64::MAX), Relaxed);
    }

    pub fn inc(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn dec(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    pub fn shift(&self, difference: i64) {
        self.0.fetch_add(difference, Relaxed);
    }

    /// Returns the value. Briefly below zero while an `inc` and its `dec` race on two threads.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug, Default)]
pub struct DurationGauge(AtomicU64);

impl DurationGauge {
    pub fn set(&self, duration: Duration) {
        self.0.store(nanos(duration), Relaxed);
    }

    /// Replaces the value by a longer duration.
    pub fn raise_to(&self, duration: Duration) {
        let nanos = nanos(duration);
        if nanos > self.0.load(Relaxed) {
            self.0.fetch_max(nanos, Relaxed);
        }
    }

    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// Current bytes of each part of a node's memory, exported as one series per part.
#[derive(Debug, Default)]
pub struct PartsGauge([AtomicU64; Part::ALL.len()]);

impl PartsGauge {
    /// Replaces all values, in the order of [`Part::ALL`].
    pub fn set(&self, bytes: [u64; Part::ALL.len()]) {
        for (part, bytes) in self.0.iter().zip(bytes) {
            part.store(bytes, Relaxed);
        }
    }

    pub fn get(&self) -> [(&'static str, u64); Part::ALL.len()] {
        Part::ALL.map(|(part, label)| (label, self.0[part as usize].load(Relaxed)))
    }
}

/// A listener that presents the node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsListener {
    /// Listener for the other nodes.
    Peer,
    Client,
    /// Listener for health, metrics and reports.
    Http,
}

impl TlsListener {
    const ALL: [(TlsListener, &'static str); 3] =
        [(TlsListener::Peer, "peer"), (TlsListener::Client, "client"), (TlsListener::Http, "http")];
}

/// Seconds until a certificate expires, exported as one series per listener with a certificate.
#[derive(Debug)]
pub struct ExpiryGauge([AtomicI64; TlsListener::ALL.len()]);

impl ExpiryGauge {
    const UNSET: i64 = i64::MIN;

    pub fn set(&self, listener: TlsListener, seconds: i64) {
        self.0[listener as usize].store(seconds.max(Self::UNSET + 1), Relaxed);
    }

    /// Returns the values of listeners with a certificate, with their labels.
    pub fn get(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let all = TlsListener::ALL.map(|(one, label)| (label, self.0[one as usize].load(Relaxed)));
        all.into_iter().filter(|(_, seconds)| *seconds != Self::UNSET)
    }
}

impl Default for ExpiryGauge {
    fn default() -> Self {
        ExpiryGauge(TlsListener::ALL.map(|_| AtomicI64::new(Self::UNSET)))
    }
}

/// Time for which a member has not answered the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    pub node: NodeId,
    /// Time since the leader sent the newest request that the member has answered.
    pub lasts: Duration,
    /// True if the member has not answered this leader yet: its real silence may be longer.
    pub is_least: bool,
}

impl Silence {
    /// Time in which a new leader hears every live member.
    const HEARD_WITHIN: Duration = Duration::from_millis(1_500);

    /// Returns each known silence in milliseconds. Leaves out members that a new leader has not had time to
    /// hear.
    pub fn known(silences: &[Silence]) -> Vec<(NodeId, u64)> {
        let is_known = |one: &&Silence| !one.is_least || one.lasts > Self::HEARD_WITHIN;
        let ms = |lasts: Duration| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        silences.iter().filter(is_known).map(|one| (one.node, ms(one.lasts))).collect()
    }
}

/// Seconds since each member answered this leader, exported as a series per member. Empty on followers. A
/// single task writes the gauge, so the lock is almost never contended.
#[derive(Debug, Default)]
pub struct SilenceGauge(Mutex<Vec<Silence>>);

impl SilenceGauge {
    pub fn set(&self, silences: Vec<Silence>) {
        *self.0.lock() = silences;
    }

    pub fn get(&self) -> Vec<Silence> {
        self.0.lock().clone()
    }
}

/// Role in the Raft group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
    /// Replicates without a vote.
    Learner,
}

impl Role {
    /// Returns the name used in metrics, documents and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
            Role::Learner => "learner",
        }
    }
}

/// The Raft role, exported as one series per role; the current role's series is 1.
#[derive(Debug, Default)]
pub struct RoleGauge(AtomicU64);

impl RoleGauge {
    pub const ROLES: [(Role, &'static str); 4] = [
        (Role::Follower, "follower"),
        (Role::Candidate, "candidate"),
        (Role::Leader, "leader"),
        (Role::Learner, "learner"),
    ];

    pub fn set(&self, role: Role) {
        let index = Self::ROLES.iter().position(|(r, _)| *r == role).expect("ROLES lists every role");
        self.0.store(index as u64, Relaxed);
    }

    pub fn get(&self) -> Role {
        Self::ROLES[self.0.load(Relaxed) as usize].0
    }
}

/// Upper bounds of the duration buckets in nanoseconds: 1, 1.5, 2, 3, 5, 7 per decade from 10 µs to 10 s.
pub const SECONDS_BOUNDS_NS: [u64; 37] = seconds_bounds();
/// Upper bounds of the buckets for waits of people, in milliseconds: a millisecond to an hour.
pub const LONG_BOUNDS_MS: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000,
    1_800_000, 3_600_000,
];
/// Upper bounds of the size buckets.
pub const SIZE_BOUNDS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

const fn seconds_bounds() -> [u64; 37] {
    const STEPS_TENTHS: [u64; 6] = [10, 15, 20, 30, 50, 70];
    let mut bounds = [0; 37];
    let mut decade = 1_000;
    let mut i = 0;
    while i < 36 {
        bounds[i] = decade * STEPS_TENTHS[i % 6];
        if i % 6 == 5 {
            decade *= 10;
        }
        i += 1;
    }
    bounds[36] = 10_000_000_000;
    bounds
}

/// Counts by fixed bounds, and a count above the last bound.
#[derive(Debug)]
struct Buckets<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Buckets<N> {
    fn new(bounds: &'static [u64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Buckets { bounds, counts, beyond: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    fn record(&self, value: u64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        self.counts.get(index).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    fn view(&self) -> View {
        let mut seen = 0;
        let mut cumulative = Vec::with_capacity(N);
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            seen += count.load(Relaxed);
            cumulative.push((*bound, seen));
        }
        View { cumulative, count: seen + self.beyond.load(Relaxed), sum: self.sum.load(Relaxed) }
    }
}

/// A histogram at one moment. `count` is the sum of the buckets, and so never contradicts the buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Upper bound (inclusive) and the number of values up to the bound.
    pub cumulative: Vec<(u64, u64)>,
    /// Number of all values.
    pub count: u64,
    pub sum: u64,
}

impl View {
    /// Returns an estimate of the quantile `q` (0 to 1), linear inside its bucket; above the last bound, the
    /// last bound. `None` without values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        assert!((0.0..=1.0).contains(&q), "a quantile lies in 0..=1");
        if self.count == 0 {
            return None;
        }
        let rank = (q * self.count as f64).max(1.0);
        let (mut lower, mut below) = (0, 0);
        for &(bound, seen) in &self.cumulative {
            if seen as f64 >= rank {
                let inside = (rank - below as f64) / (seen - below) as f64;
                return Some(lower as f64 + inside * (bound - lower) as f64);
            }
            (lower, below) = (bound, seen);
        }
        Some(lower as f64)
    }
}

/// Durations in buckets from 10 µs to 10 s.
#[derive(Debug)]
pub struct Histogram(Buckets<37>);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(Buckets::new(&SECONDS_BOUNDS_NS))
    }
}

impl Histogram {
    pub fn record(&self, duration: Duration) {
        self.0.record(nanos(duration));
    }

    /// Returns the contents in nanoseconds.
    pub fn view(&self) -> View {
        self.0.view()
    }

    /// Returns an estimate of the quantile `q` (0 to 1); `None` without values.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        self.view().quantile(q).map(|ns| Duration::from_nanos(ns as u64))
    }
}

/// Durations measured by the clock of log entries, in buckets from 1 ms to 1 h.
#[derive(Debug)]
pub struct LongHistogram(Buckets<19>);

impl Default for LongHistogram {
    fn default() -> Self {
        LongHistogram(Buckets::new(&LONG_BOUNDS_MS))
    }
}

impl LongHistogram {
    pub fn record(&self, duration: Duration) {
        self.0.record(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    }

    /// Returns the contents in milliseconds.
    pub fn view(&self) -> View {
        self.0.view()
    }
}

/// Sizes (commands of a batch), in buckets of powers of two up to 1,024.
#[derive(Debug)]
pub struct SizeHistogram(Buckets<11>);

impl Default for SizeHistogram {
    fn default() -> Self {
        SizeHistogram(Buckets::new(&SIZE_BOUNDS))
    }
}

impl SizeHistogram {
    pub fn record(&self, size: usize) {
        self.0.record(size as u64);
    }

    pub fn view(&self) -> View {
        self.0.view()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_omits_members_that_it_had_no_time_to_hear() {
        let of = |node: u64, ms: u64, is_least: bool| {
            let (node, lasts) = (NodeId(node), Duration::from_millis(ms));
            Silence { node, lasts, is_least }
        };
        let silences = [of(1, 200, true), of(2, 200, false), of(3, 1_501, true)];
        assert_eq!(Silence::known(&silences), [(NodeId(2), 200), (NodeId(3), 1_501)]);
    }

    #[test]
    fn duration_bounds_grow_strictly_from_10_us_to_10_s() {
        assert_eq!(SECONDS_BOUNDS_NS[0], 10_000);
        assert_eq!(SECONDS_BOUNDS_NS[36], 10_000_000_000);
        assert!(SECONDS_BOUNDS_NS.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn long_durations_have_distinct_buckets_up_to_an_hour() {
        let histogram = LongHistogram::default();
        for ms in [0, 1, 45_000, 10_000_000] {
            histogram.record(Duration::from_millis(ms));
        }
        let view = histogram.view();
        assert_eq!((view.cumulative[0], view.count, view.sum), ((1, 2), 4, 10_045_001));
        assert_eq!(view.cumulative.last(), Some(&(3_600_000, 3)));
        assert!(LONG_BOUNDS_MS.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_value_on_a_bound_falls_into_that_bucket() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(10));
        assert_eq!(histogram.view().cumulative[0], (10_000, 1));
        histogram.record(Duration::from_nanos(10_001));
        assert_eq!(histogram.view().cumulative[0], (10_000, 1));
        assert_eq!(histogram.view().cumulative[1], (15_000, 2));
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_the_true_value() {
        let histogram = Histogram::default();
        for micros in 1..=1_000 {
            histogram.record(Duration::from_micros(micros));
        }
        let p50 = histogram.quantile(0.5).unwrap();
        let p99 = histogram.quantile(0.99).unwrap();
        assert!((Duration::from_micros(300)..=Duration::from_micros(500)).contains(&p50), "{p50:?}");
        assert!((Duration::from_micros(700)..=Duration::from_micros(1_000)).contains(&p99), "{p99:?}");
        assert!(p50 < p99);
    }

    #[test]
    fn a_quantile_is_none_without_values_and_at_most_the_last_bound() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        histogram.record(Duration::from_secs(3_600));
        assert_eq!(histogram.quantile(0.5), Some(Duration::from_secs(10)));
        assert_eq!(histogram.view().count, 1);
    }

    #[test]
    fn role_gauge_returns_the_role_that_was_set() {
        let gauge = RoleGauge::default();
        assert_eq!(gauge.get(), Role::Follower);
        for (role, _) in RoleGauge::ROLES {
            gauge.set(role);
            assert_eq!(gauge.get(), role);
        }
    }
}
