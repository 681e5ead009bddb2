//! Medians with minimum and maximum, and ratios of trials close in time.

use crate::results::Results;
use crate::system::System;

/// Median and extremes of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median; of an even count the mean of the two middle values.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Spread { median, min, max })
    }
}

/// Single figure of a workload at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure<'a> {
    pub workload: &'a str,
    pub size: u64,
    pub metric: &'a str,
}

/// Returns a system's figure over all rounds.
pub fn spread(results: &Results, figure: Figure<'_>, system: System) -> Option<Spread> {
    let Figure { workload, size, metric } = figure;
    Spread::of(results.values(system, workload, size, metric).map(|(_, value)| value))
}

/// Returns `subject` divided by `other`, within each round that has both.
pub fn ratio(results: &Results, figure: Figure<'_>, subject: System, other: System) -> Option<Spread> {
    let Figure { workload, size, metric } = figure;
    let others: Vec<(u32, f64)> = results.values(other, workload, size, metric).collect();
    let pairs = results.values(subject, workload, size, metric).filter_map(|(round, value)| {
        let (_, beside) = others.iter().find(|(other, _)| *other == round)?;
        (*beside != 0.0).then(|| value / beside)
    });
    Spread::of(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Trial;

    #[test]
    fn the_median_is_the_mean_of_the_middle_values() {
        assert_eq!(Spread::of([5.0, 1.0, 3.0]), Some(Spread { median: 3.0, min: 1.0, max: 5.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_ratio_is_one_of_the_same_round_and_not_of_medians() {
        let mut results = Results::default();
        // The machine halves its speed after round 0; the ratio stays the same.
        for (round, ours, theirs) in [(0, 40.0, 20.0), (1, 20.0, 10.0), (2, 22.0, 10.0)] {
            results.trials.push(Trial::new(System::Rowlock, "uncontended", 1, round).with("x", ours));
            results.trials.push(Trial::new(System::Etcd, "uncontended", 1, round).with("x", theirs));
        }
        results.trials.push(Trial::new(System::Rowlock, "uncontended", 1, 3).with("x", 1000.0)); // has no neighbor
        let figure = Figure { workload: "uncontended", size: 1, metric: "x" };
        let ratio = ratio(&results, figure, System::Rowlock, System::Etcd);
        assert_eq!(ratio, Some(Spread { median: 2.0, min: 2.0, max: 2.2 }));
    }
}
