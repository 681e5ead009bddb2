//! How fast new sessions may be opened: a bucket of tokens, one for each. Sessions that come back need none,
//! so a whole node's clients return at once behind a change of leader.

use std::time::Duration;

use rowlock_env::time::Instant;

/// A node that was idle opens as many at once as in so many seconds otherwise: all clients of a restarted
/// application.
const BURST_SECONDS: u32 = 5;

/// See the module.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Tokens a second; 0: no bound.
    rate: u32,
    /// What one token takes to come.
    interval: Duration,
    /// When the bucket is full, if nothing is taken.
    full_at: Option<Instant>,
}

impl Throttle {
    /// A full bucket.
    pub(super) fn new(rate: u32) -> Self {
        let interval = Duration::from_secs(1).checked_div(rate).unwrap_or_default();
        Throttle { rate, interval, full_at: None }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.interval;
        let has_one =
            self.rate == 0 || full_at.saturating_since(now) <= self.interval * self.rate * BURST_SECONDS;
        if has_one {
            self.full_at = Some(full_at);
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_bucket_gives_a_burst_and_then_its_rate() {
        let (mut throttle, begin) = (Throttle::new(100), Instant::now());
        let taken = |throttle: &mut Throttle, now| (0..10_000).filter(|_| throttle.take(now)).count();
        assert_eq!(taken(&mut throttle, begin), 500);
        assert_eq!(taken(&mut throttle, begin + Duration::from_millis(9)), 0);
        assert_eq!(taken(&mut throttle, begin + Duration::from_millis(10)), 1);
        assert_eq!(taken(&mut throttle, begin + Duration::from_secs(1)), 99);
        assert_eq!(taken(&mut throttle, begin + Duration::from_secs(3_600)), 500, "no more than a burst");
    }

    #[test]
    fn without_a_rate_there_is_no_bound() {
        let (mut throttle, now) = (Throttle::new(0), Instant::now());
        assert!((0..100_000).all(|_| throttle.take(now)));
    }
}
