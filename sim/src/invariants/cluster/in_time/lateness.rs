//! Lateness of what the world owed: samples in fixed buckets, by kind.

use std::ops::AddAssign;
use std::time::Duration;

/// What the world owes. The bound of each is about twice the worst of 70 seeds without mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Debt {
    /// A node leads that reaches a quorum, after the timers of an election: votes may split.
    Leader,
    /// Another node leads when a leader has stopped on request: it leads before the old leader is gone.
    HandOver,
    /// A change of voters ends: a new leader checks once a second for a change of its predecessor.
    Change,
    /// The leader's autopilot makes a change that is due.
    Autopilot,
    /// The version rises when all members have run the new release for a while, or an operator asks for it.
    Version,
    /// A client without connection has another: at once, or after the longest pause if attempts have failed.
    Reconnect,
    /// A client's heartbeat is answered.
    Heartbeat,
    /// A call is answered: a round trip, a flush, and the work of other clients.
    Call,
    /// The client of a granted position knows of the grant: one message.
    Grant,
    /// A granted position that no call asks for is left, or used: one request.
    Removal,
    /// A fired watch reaches its watcher, which checks its watches at least every half second.
    Notice,
    /// A fresh client of a serving node has a session, a write and a lock.
    Probe,
    /// A holder hears of a request to release the lock; the holder checks its lock every 150 ms.
    Question,
    /// A quiet client is answered beside floods, or an acquire by HTTP at the end of its wait: documented.
    Quiet,
}

/// Each kind with its name, and its most lateness in milliseconds.
const KINDS: [(Debt, &str, u64); 14] = [
    (Debt::Leader, "leader", 500),
    (Debt::HandOver, "hand-over", 100),
    (Debt::Change, "change", 6_000),
    (Debt::Autopilot, "autopilot", 4_000),
    (Debt::Version, "version", 1_500),
    (Debt::Reconnect, "reconnect", 150),
    (Debt::Heartbeat, "heartbeat", 150),
    (Debt::Call, "call", 400),
    (Debt::Grant, "grant", 200),
    (Debt::Removal, "removal", 200),
    (Debt::Notice, "notice", 700),
    (Debt::Probe, "probe", 200),
    (Debt::Question, "question", 300),
    (Debt::Quiet, "quiet", 750),
];

impl Debt {
    pub fn all() -> impl Iterator<Item = Debt> {
        KINDS.iter().map(|(debt, ..)| *debt)
    }

    pub fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// Returns the number of flushes that this debt may wait for: for a leader those of two rounds of votes.
    /// A client may wait for a lagging node, which first stores a snapshot.
    pub fn flushes(self) -> u32 {
        if self <= Debt::Change { 12 } else { 32 }
    }

    pub fn bound(self) -> Duration {
        Duration::from_millis(KINDS[self as usize].2)
    }
}

/// Upper ends of the buckets in milliseconds; the last bucket has none.
const ENDS_MS: [u64; 25] = [
    0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 1_500, 2_000, 3_000,
    5_000, 7_000, 10_000,
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; ENDS_MS.len() + 1],
    worst: Duration,
}

impl Histogram {
    fn add(&mut self, late: Duration) {
        let bucket = ENDS_MS.partition_point(|end| Duration::from_millis(*end) < late);
        self.counts[bucket] += 1;
        self.worst = self.worst.max(late);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn worst(&self) -> Duration {
        self.worst
    }

    /// Returns the end of the bucket with this percentile, at most the worst.
    pub fn percentile(&self, percent: u64) -> Duration {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let end = bucket.and_then(|bucket| ENDS_MS.get(bucket));
        end.map_or(self.worst, |end| self.worst.min(Duration::from_millis(*end)))
    }
}

/// Samples of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness([Histogram; KINDS.len()]);

impl Lateness {
    pub fn of(&self, debt: Debt) -> &Histogram {
        &self.0[debt as usize]
    }

    pub fn add(&mut self, debt: Debt, late: Duration) {
        self.0[debt as usize].add(late);
    }
}

impl AddAssign<&Lateness> for Lateness {
    fn add_assign(&mut self, other: &Lateness) {
        for (sum, other) in self.0.iter_mut().zip(&other.0) {
            sum.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
            sum.worst = sum.worst.max(other.worst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ends_of_buckets_and_at_most_the_worst() {
        let (mut all, mut more) = (Lateness::default(), Lateness::default());
        (0..98).for_each(|_| all.add(Debt::Call, Duration::ZERO));
        [4, 12_000].into_iter().for_each(|ms| more.add(Debt::Call, Duration::from_millis(ms)));
        all += &more;
        let percentiles = [50, 99, 100].map(|percent| all.of(Debt::Call).percentile(percent).as_millis());
        assert_eq!((percentiles, all.of(Debt::Grant).count()), ([0, 5, 12_000], 0));
    }
}
