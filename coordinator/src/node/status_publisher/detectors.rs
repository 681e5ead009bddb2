//! Detectors of outages, unresponsive disks, stalled commits and the end of a restored cluster's grace. Pure:
//! each takes the time of its observation.

use std::time::Duration;

use rowlock_env::time::Instant;

/// A disk with a write pending this long counts as unresponsive. Flushes of several seconds are slow, and the
/// node keeps serving.
pub const DISK_HANGS_AFTER: Duration = Duration::from_secs(5);

/// Interval of log lines during an outage.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Log schedule of an outage: the cause is logged at once elsewhere, the duration here every ten seconds.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    logged: u32,
}

impl Outage {
    /// Records whether the node serves. Returns the outage's duration when a log line is due.
    pub(super) fn update(&mut self, serving: bool, now: Instant) -> Option<Duration> {
        if serving {
            *self = Outage::default();
            return None;
        }
        let lasts = now.saturating_since(*self.since.get_or_insert(now));
        let due = lasts >= LOG_EVERY * (self.logged + 1);
        if due {
            self.logged = u32::try_from(lasts.as_secs() / LOG_EVERY.as_secs()).unwrap_or(u32::MAX - 1);
        }
        due.then_some(lasts)
    }
}

/// Detector of an unresponsive disk.
#[derive(Debug, Default)]
pub(super) struct Hang {
    /// Oldest pending write, and the commit index when the write was first seen.
    oldest: Option<(Instant, u64)>,
}

impl Hang {
    /// Records the disk's progress. Returns whether the write pending since `unflushed_since` hangs, and
    /// whether the cluster has made progress since.
    pub(super) fn update(
        &mut self,
        unflushed_since: Option<Instant>,
        committed: u64,
        now: Instant,
    ) -> (bool, bool) {
        self.oldest = unflushed_since.map(|since| match self.oldest {
            // A new leader may know a lower commit index than its predecessor.
            Some((known, then)) if known == since => (known, then.min(committed)),
            _ => (since, committed),
        });
        let Some((since, then)) = self.oldest else { return (false, false) };
        let hangs = now.saturating_since(since) >= DISK_HANGS_AFTER;
        (hangs, hangs && committed > then)
    }
}

/// Detector of stalled commits: a majority of the disks may hang while this node's disk does not.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Commit index, and the beginning of its standstill.
    since: Option<(u64, Instant)>,
}

impl Stall {
    /// Records the commit index. Returns whether an entry has waited without any commit for
    /// [`DISK_HANGS_AFTER`].
    pub(super) fn update(&mut self, last: u64, committed: u64, now: Instant) -> bool {
        self.since = (last > committed).then_some(match self.since {
            Some((known, since)) if known == committed => (known, since),
            _ => (committed, now),
        });
        self.since.is_some_and(|(_, since)| now.saturating_since(since) >= DISK_HANGS_AFTER)
    }
}

/// Remaining grace after a restore. The leader measures the grace from the beginning of its term, this node
/// from its first sight of the term, so this node's value is never too small.
#[derive(Debug, Default)]
pub(super) struct Grace {
    /// Term and time of the first sight.
    since: Option<(u64, Instant)>,
}

impl Grace {
    /// Returns whole seconds, at least 1 until the leader ends the grace.
    pub(super) fn left(&mut self, grace_ms: u32, term: u64, now: Instant) -> u64 {
        if grace_ms == 0 {
            self.since = None;
            return 0;
        }
        let since = match self.since {
            Some((known, since)) if known == term => since,
            _ => now,
        };
        self.since = Some((term, since));
        let left = Duration::from_millis(grace_ms.into()).saturating_sub(now.saturating_since(since));
        left.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_counts_down_in_seconds_and_restarts_per_leader() {
        let (mut grace, begin) = (Grace::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(grace.left(0, 1, at(0)), 0);
        assert_eq!(grace.left(40_000, 1, at(0)), 40);
        assert_eq!(grace.left(40_000, 1, at(12_500)), 28);
        assert_eq!(grace.left(40_000, 1, at(60_000)), 1, "the leader has not ended it");
        assert_eq!(grace.left(40_000, 2, at(60_000)), 40, "another leader");
        assert_eq!(grace.left(0, 2, at(61_000)), 0);
    }

    #[test]
    fn node_with_hung_disk_is_left_behind_when_others_commit() {
        let (mut hang, begin) = (Hang::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(hang.update(None, 5, at(0)), (false, false));
        assert_eq!(hang.update(Some(at(1)), 5, at(1)), (false, false));
        assert_eq!(hang.update(Some(at(9)), 7, at(12)), (false, false), "slow, and each write ends");
        assert_eq!(hang.update(Some(at(9)), 7, at(19)), (true, false), "the cluster stands still");
        assert_eq!(hang.update(Some(at(9)), 6, at(19)), (true, false), "this node leads, and knows less");
        assert_eq!(hang.update(Some(at(9)), 8, at(20)), (true, true));
        assert_eq!(hang.update(Some(at(20)), 9, at(21)), (false, false), "it has ended");
    }

    #[test]
    fn commits_stall_when_an_entry_waits_and_none_is_committed() {
        let (mut stall, begin) = (Stall::default(), Instant::now());
        let mut update = |s, last, committed| stall.update(last, committed, begin + Duration::from_secs(s));
        assert!(!update(0, 7, 7) && !update(60, 7, 7), "nothing waits");
        assert!(!update(61, 8, 7) && !update(65, 9, 7));
        assert!(update(66, 9, 7));
        assert!(!update(67, 9, 8), "slow is not stalled");
        assert!(!update(71, 9, 8) && update(72, 9, 8));
    }

    #[test]
    fn outage_is_logged_again_every_ten_seconds() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let mut logged = |ms: u64, serving| {
            outage.update(serving, begin + Duration::from_millis(ms)).map(|lasts| lasts.as_secs())
        };
        let first: Vec<u64> = (0..700).filter_map(|n| logged(n * 50, false)).collect();
        assert_eq!(first, [10, 20, 30]);
        assert_eq!(logged(65_000, false), Some(65), "late, and once");
        assert_eq!(logged(69_000, false), None);
        assert_eq!(logged(70_000, false), Some(70));
        assert_eq!(logged(80_000, true), None);
        assert_eq!(logged(81_000, false), None, "another one begins");
        assert_eq!(logged(91_000, false), Some(10));
    }
}
