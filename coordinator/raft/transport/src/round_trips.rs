//! How long it takes until another node answers, as the answers to heartbeats and pre-votes show it. No flush
//! is in most of them, and the least of several counts.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// The answers that count.
const LATEST: usize = 8;

#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    latest: Mutex<VecDeque<Duration>>,
}

impl RoundTrips {
    /// A request was answered after so long.
    pub(super) fn note(&self, took: Duration) {
        let mut latest = self.latest.lock();
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(took);
        assert!(latest.len() <= LATEST, "only the latest count");
    }

    /// The shortest of the latest. `None`: too few are known.
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
        (1..8).for_each(|ms| trips.note(Duration::from_millis(ms)));
        assert_eq!(trips.shortest(), None);
        trips.note(Duration::from_millis(90));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(1)));
        (0..8).for_each(|_| trips.note(Duration::from_millis(200)));
        assert_eq!(trips.shortest(), Some(Duration::from_millis(200)));
    }
}
