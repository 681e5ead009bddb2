//! Random choices of a client, from its host's stream of random numbers: one seed decides them all.

use std::time::Duration;

use rowlock_env::rng;

/// True `percent` times in a hundred.
pub(super) fn chance(percent: u64) -> bool {
    rng::below(100) < percent
}

/// From `least` to `most`, both included.
pub(super) fn between(least: u64, most: u64) -> u64 {
    least + rng::below(most - least + 1)
}

/// A duration of `least` to `most` milliseconds.
pub(super) fn millis(least: u64, most: u64) -> Duration {
    Duration::from_millis(between(least, most))
}

/// Around `mean`, mostly shorter and now and then much longer, as people and jobs come; at most six times as
/// long.
pub(super) fn about(mean: Duration) -> Duration {
    // The product of two even choices: many small ones, few large ones, a mean of a quarter of the whole.
    let percent = between(0, 100) * between(0, 100) / 100;
    mean * 4 * u32::try_from(percent).unwrap_or(100) / 100 + Duration::from_millis(1)
}

/// One of `items`, of which there is at least one.
pub(super) fn pick<T: Clone>(items: &[T]) -> T {
    items[usize::try_from(rng::below(items.len() as u64)).unwrap_or(0)].clone()
}

/// One of `items` in proportion to its weight; the first one if all weights are zero.
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
