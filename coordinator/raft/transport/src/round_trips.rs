//! Round-trip times to another node, measured on heartbeats and pre-votes. Most of these need no flush, and
//! the minimum of several counts.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Number of round trips to remember.
const LATEST: usize = 8;

#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    latest: Mutex<VecDeque<Duration>>,
}

impl RoundTrips {
    pub(super) fn record(&self, took: Duration) {
        let mut latest = self.latest.lock();
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(took);
        assert!(latest.len() <= LATEST, "only the latest count");
    }

    /// Returns the shortest of the latest round trips. `None`: fewer than [`LATEST`] are known.
    pub(super) fn shortest(&self) -> Option<Duration> {
        let latest = self.latest.lock();
        debug_assert!(latest.len() <= LATEST, "only the latest count");
        latest.iter().min().copied().filter(|_| latest.len() == LATEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_latest_eight_counts() {
        let trips = RoundTrips::default();
        (1..8).for_each(|ms| trips.record(Duration::from_millis(ms)));
        assert_eq!(trips.shortest(), None);
        trips.record(Duration::from_millis(90));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(1)));
        (0..8).for_each(|_| trips.record(Duration::from_millis(200)));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(200)));
    }
}
