//! Minimizes a failing script: delta debugging over its steps (Zeller and Hildebrandt, 2002).

use std::collections::BTreeSet;
use std::future::Future;

/// Returns a minimal set of steps: without any one of them, the failure disappears. `fails` plays a
/// selection.
pub async fn minimise<F>(
    steps: BTreeSet<usize>,
    mut fails: impl FnMut(BTreeSet<usize>) -> F,
) -> BTreeSet<usize>
where
    F: Future<Output = bool>,
{
    let mut kept: Vec<usize> = steps.into_iter().collect();
    let mut parts = 2;
    while kept.len() > 1 {
        let size = kept.len().div_ceil(parts);
        let mut smaller = None;
        for start in (0..kept.len()).step_by(size) {
            let end = (start + size).min(kept.len());
            let rest: Vec<usize> = kept[..start].iter().chain(&kept[end..]).copied().collect();
            if !rest.is_empty() && fails(rest.iter().copied().collect()).await {
                smaller = Some(rest);
                break;
            }
        }
        match smaller {
            Some(rest) => {
                kept = rest;
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(kept.len()),
        }
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_steps_that_the_failure_needs_remain() {
        let mut plays = 0;
        let needed = BTreeSet::from([3, 17, 29]);
        let fails = |steps: BTreeSet<usize>| {
            plays += 1;
            std::future::ready(needed.is_subset(&steps))
        };
        assert_eq!(minimise((0..40).collect(), fails).await, needed);
        assert!(plays < 120, "{plays}");
    }
}
