//! Random choices of a client, from its host's random stream: one seed decides all choices.

use std::time::Duration;

use rowlock_env::rng;

/// Returns true with a probability of `percent` in a hundred.
pub(super) fn chance(percent: u64) -> bool {
    rng::below(100) < percent
}

/// Returns a number from `least` to `most`, both included.
pub(super) fn between(least: u64, most: u64) -> u64 {
    least + rng::below(most - least + 1)
}

/// Returns a duration of `least` to `most` milliseconds.
pub(super) fn millis(least: u64, most: u64) -> Duration {
    Duration::from_millis(between(least, most))
}

/// Returns a duration around `mean`: mostly shorter, sometimes much longer, at most six times as long.
pub(super) fn about(mean: Duration) -> Duration {
    // Product of two uniform choices: many small values, few large values, a mean of a quarter of the range.
    let percent = between(0, 100) * between(0, 100) / 100;
    mean * 4 * u32::try_from(percent).unwrap_or(100) / 100 + Duration::from_millis(1)
}

/// Returns one of `items`. Panics if there is none.
pub(super) fn pick<T: Clone>(items: &[T]) -> T {
    items[usize::try_from(rng::below(items.len() as u64)).unwrap_or(0)].clone()
}

/// Returns one of `items` in proportion to its weight; the first item if all weights are zero.
pub(super) fn weighted<T: Clone>(items: &[(T, u64)]) -> T {
    let mut at = rng::below(items.iter().map(|(_, weight)| weight).sum());
    for (item, weight) in items {
        if at < *weight {
            return item.clone();
        }
        at -= weight;
    }
    items[0].0.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_stay_in_their_range_and_reach_everything() {
        let seen: std::collections::BTreeSet<u64> = (0..500).map(|_| between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        let never = (0..500).map(|_| weighted(&[('a', 0), ('b', 3)])).any(|it| it == 'a');
        assert!(!never);
        let mean = Duration::from_millis(100);
        assert!((0..500).all(|_| about(mean) <= 6 * mean));
    }
}
