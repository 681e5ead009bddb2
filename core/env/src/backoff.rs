//! Pauses between retries of failed work. The pauses double with each failure up to a bound, and start again
//! after a success.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::rng;
use crate::time::Instant;

/// Consecutive failures, and the time of the next attempt.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// Records a failure at `now`. Returns the pause before the next attempt, by [`pause_after`].
    pub fn failed(&mut self, now: Instant, pauses: &RangeInclusive<Duration>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let pause = pause_after(self.failures, pauses);
        self.not_before = Some(now + pause);
        pause
    }

    /// Resets the failures. Returns their former number.
    pub fn succeeded(&mut self) -> u32 {
        std::mem::take(self).failures
    }

    /// Returns the failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns true if the pause after the last failure lasts beyond `now`.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|at| now < at)
    }

    /// Returns the end of the pause, or `None` without a failure since the last success.
    pub fn not_before(&self) -> Option<Instant> {
        self.not_before
    }
}

/// Returns the pause after `failures` consecutive failures, at least one: the first of `pauses`, doubled with
/// each further failure up to the last of `pauses`. Half of the pause is random, so that callers with
/// simultaneous failures retry at different times.
pub fn pause_after(failures: u32, pauses: &RangeInclusive<Duration>) -> Duration {
    assert!(failures > 0, "without a failure there is no pause");
    let full = pauses.start().saturating_mul(1 << (failures - 1).min(16)).min(*pauses.end());
    let half = u64::try_from(full.as_micros() / 2).unwrap_or(u64::MAX);
    Duration::from_micros(half + rng::below(half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    const PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(250);

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again_after_a_success() {
        let (now, mut backoff) = (time::now(), Backoff::default());
        let within = |pause: Duration, full_ms| {
            let full = Duration::from_millis(full_ms);
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        };
        for round in 0..2 {
            assert_eq!((backoff.failures(), backoff.not_before()), (0, None), "{round}");
            for (failures, full_ms) in (1..).zip([10, 20, 40, 80, 160, 250, 250]) {
                let pause = backoff.failed(now, &PAUSES);
                within(pause, full_ms);
                assert_eq!((backoff.failures(), backoff.not_before()), (failures, Some(now + pause)));
                assert!(backoff.is_pausing(now) && !backoff.is_pausing(now + pause));
            }
            assert_eq!(backoff.succeeded(), 7);
        }
        within(pause_after(u32::MAX, &PAUSES), 250);
    }
}
