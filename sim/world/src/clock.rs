//! A host's own clocks: the monotonic clock has its own rate, the wall clock also jumps. Neither shows true
//! time.

use crate::time::Nanos;

/// Rate of a clock that keeps true time.
pub const TRUE_RATE: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub struct Clock {
    /// Rate in parts per million of true time.
    rate: u64,
    /// True time at which the clock showed `local`; the clock has kept its rate since.
    since: Nanos,
    local: u64,
    /// Lead of the wall clock over the monotonic one, milliseconds.
    wall_ahead_ms: i64,
}

impl Clock {
    /// Creates a clock that shows `local` nanoseconds and the wall time `wall_ms` at true time `now`.
    pub fn new(now: Nanos, local: u64, wall_ms: i64) -> Self {
        Clock { rate: TRUE_RATE, since: now, local, wall_ahead_ms: wall_ms - millis(local) }
    }

    /// Returns the monotonic clock in nanoseconds.
    pub fn local(&self, now: Nanos) -> u64 {
        let elapsed = u128::from(now.0 - self.since.0) * u128::from(self.rate) / u128::from(TRUE_RATE);
        self.local + u64::try_from(elapsed).expect("Invariant: a run is shorter than centuries")
    }

    /// Returns the wall clock in milliseconds since 1970.
    pub fn wall_ms(&self, now: Nanos) -> i64 {
        millis(self.local(now)) + self.wall_ahead_ms
    }

    /// Returns the first true time at which the monotonic clock shows `local` or more.
    ///
    /// Invariant: the result is rounded up; a result rounded down would fire a timer early, and the timer
    /// would be set and fire early for ever.
    pub fn when(&self, local: u64) -> Nanos {
        let ahead = u128::from(local.saturating_sub(self.local)) * u128::from(TRUE_RATE);
        let true_ahead = ahead.div_ceil(u128::from(self.rate));
        Nanos(self.since.0.saturating_add(u64::try_from(true_ahead).unwrap_or(u64::MAX)))
    }

    /// Sets the rate to `rate` parts per million from now on.
    pub fn set_rate(&mut self, now: Nanos, rate: u64) {
        assert!(rate > 0, "a monotonic clock does not stand still");
        (self.local, self.since, self.rate) = (self.local(now), now, rate);
    }

    pub fn jump(&mut self, by_ms: i64) {
        self.wall_ahead_ms += by_ms;
    }
}

fn millis(nanos: u64) -> i64 {
    i64::try_from(nanos / 1_000_000).expect("Invariant: a u64 of nanoseconds is few milliseconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_returns_the_exact_true_time_of_a_deadline() {
        for rate in [900_000, 950_001, 999_999, TRUE_RATE, 1_000_001, 1_049_999, 1_500_000] {
            let mut clock = Clock::new(Nanos(5), 1_000, 0);
            clock.set_rate(Nanos(17), rate);
            for deadline in [1_013, 1_014, 2_000, 123_456_789, 99_999_999_999] {
                let when = clock.when(deadline);
                assert!(clock.local(when) >= deadline);
                assert!(when.0 <= 17 || clock.local(Nanos(when.0 - 1)) < deadline, "{rate} {deadline}");
            }
        }
    }

    #[test]
    fn a_change_of_rate_never_moves_the_monotonic_clock() {
        let mut clock = Clock::new(Nanos(0), 7, 1_000);
        let before = clock.local(Nanos(1_000_003));
        clock.set_rate(Nanos(1_000_003), 1_050_000);
        assert_eq!(clock.local(Nanos(1_000_003)), before);
        clock.jump(-600);
        assert_eq!(clock.local(Nanos(1_000_003)), before);
        assert_eq!(clock.wall_ms(Nanos(1_000_003)), 401);
    }
}
