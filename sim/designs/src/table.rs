//! All designs in all scenarios with several seeds, and the results.

use std::time::Duration;

use rowlock_world::executor::Halt;

use crate::design::{About, Design};
use crate::outside_view::Remark;
use crate::scenario::Scenario;
use crate::stage::{self, Outcome};

/// Figures of several runs of one design in one scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub runs: u64,
    /// Runs in which the fault happened.
    pub faults: u64,
    pub grants: u64,
    /// Times with two holders.
    pub windows: u64,
    /// Total time with two holders.
    pub overlap: Duration,
    /// Updates lost on the store that accepts every write.
    pub lost_plain: u64,
    /// Updates lost on the store that checks tokens.
    pub lost_fenced: u64,
    pub refused: u64,
    /// Runs that ended stuck.
    pub stuck: u64,
    /// Clients that waited all through the end of a run while others were granted the lock.
    pub starved: u64,
    /// Grants that passed over an earlier request.
    pub overtakes: u64,
    /// Median waiting time of a grant.
    pub wait_p50: Duration,
    /// Waiting time that one grant in a hundred exceeds.
    pub wait_p99: Duration,
    pub messages: u64,
    /// Requests and wake-ups without a grant.
    pub denied: u64,
    /// Refused renewals: the lock was lost.
    pub renewals_refused: u64,
    /// Holders that the design notified of the loss.
    pub told: u64,
    /// Releases that reported success after another client had been granted the lock.
    pub false_releases: u64,
    /// Longest time from the fault to the next grant.
    pub recovery: Option<Duration>,
    /// Longest total time of a run without a holder although a client waited.
    pub unavailable: Duration,
    /// First seed with two holders.
    pub overlap_seed: Option<u64>,
    /// First seed with an update lost on the trusting store.
    pub loss_seed: Option<u64>,
    /// First seed that ended stuck.
    pub stuck_seed: Option<u64>,
    /// First seed with a starved client.
    pub starved_seed: Option<u64>,
    /// First seed with a release that reported success wrongly.
    pub false_release_seed: Option<u64>,
}

impl Summary {
    /// Returns messages per grant, and so per release.
    pub fn messages_per_release(&self) -> f64 {
        self.messages as f64 / self.grants.max(1) as f64
    }

    /// Returns requests and wake-ups without success, per grant.
    pub fn wasted_per_release(&self) -> f64 {
        self.denied as f64 / self.grants.max(1) as f64
    }

    /// Returns the first seed with a failure.
    fn first_bad_seed(&self, is_fenced: bool) -> Option<u64> {
        let loss_seed = self.loss_seed.filter(|_| !is_fenced || self.lost_fenced > 0);
        [self.overlap_seed, self.stuck_seed, loss_seed, self.starved_seed].into_iter().flatten().min()
    }

    fn add(&mut self, seed: u64, outcome: &Outcome) {
        let (measured, losses) = (&outcome.measured, &outcome.losses);
        let remark = |remark| measured.remarks.get(&remark).copied().unwrap_or(0);
        self.runs += 1;
        self.faults += u64::from(outcome.had_fault);
        self.grants += measured.grants;
        self.windows += measured.windows;
        self.overlap += measured.overlap;
        self.lost_plain += losses.plain;
        self.lost_fenced += losses.fenced;
        self.refused += losses.refused;
        self.stuck += u64::from(measured.is_stuck);
        self.starved += measured.starved;
        self.overtakes += measured.overtakes;
        self.messages += measured.messages;
        self.denied += remark(Remark::Denied);
        self.renewals_refused += remark(Remark::RenewalRefused);
        self.told += remark(Remark::ToldOfLoss);
        self.false_releases += measured.false_releases;
        self.recovery = self.recovery.max(measured.recovery);
        self.unavailable = self.unavailable.max(measured.unavailable);
        let first = |seen: &mut Option<u64>, is_so: bool| {
            if is_so && seen.is_none() {
                *seen = Some(seed);
            }
        };
        first(&mut self.overlap_seed, measured.windows > 0);
        first(&mut self.loss_seed, losses.plain > 0);
        first(&mut self.stuck_seed, measured.is_stuck);
        first(&mut self.starved_seed, measured.starved > 0);
        first(&mut self.false_release_seed, measured.false_releases > 0);
    }
}

/// One design in one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The scenario does not apply, for this reason.
    NotApplicable(&'static str),
    Measured(Box<Summary>),
    /// The world came to a halt: a bug of the model, or of the servers that the design uses.
    Halted {
        seed: u64,
        why: Halt,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub about: About,
    pub cells: Vec<(Scenario, Cell)>,
}

impl Row {
    /// Returns the updates lost on the store of this design.
    pub fn lost(&self, m: &Summary) -> u64 {
        if self.about.is_fenced { m.lost_fenced } else { m.lost_plain }
    }

    /// Returns the first seed of a scenario with a failure.
    pub fn first_bad_seed(&self, m: &Summary) -> Option<u64> {
        m.first_bad_seed(self.about.is_fenced)
    }

    pub fn summary(&self, scenario: Scenario) -> Option<&Summary> {
        self.cells.iter().find_map(|(s, cell)| match cell {
            Cell::Measured(summary) if *s == scenario => Some(&**summary),
            _ => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Designs in the order of the comparison.
    pub rows: Vec<Row>,
    pub scenarios: Vec<Scenario>,
    /// Number of seeds per cell, from 1.
    pub seeds: u64,
}

impl Table {
    /// Returns the figures of a design in a scenario.
    pub fn summary(&self, design: &str, scenario: Scenario) -> Option<&Summary> {
        self.rows.iter().find(|row| row.about.id == design)?.summary(scenario)
    }
}

/// Progress of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub done: u64,
    pub all: u64,
    pub design: &'static str,
    pub scenario: Scenario,
}

/// Runs `designs` in `scenarios` with seeds 1 to `seeds`, and calls `progress` before each cell.
pub fn compare(
    designs: &[&dyn Design],
    scenarios: &[Scenario],
    seeds: u64,
    mut progress: impl FnMut(Progress),
) -> Table {
    let all = (designs.len() * scenarios.len()) as u64 * seeds;
    let mut done = 0;
    let mut rows = Vec::new();
    for design in designs {
        let mut cells = Vec::new();
        for scenario in scenarios {
            progress(Progress { done, all, design: design.id(), scenario: *scenario });
            cells.push((*scenario, fill(*design, *scenario, seeds)));
            done += seeds;
        }
        rows.push(Row { about: design.about(), cells });
    }
    Table { rows, scenarios: scenarios.to_vec(), seeds }
}

fn fill(design: &dyn Design, scenario: Scenario, seeds: u64) -> Cell {
    if let Some(why) = design.not_applicable(scenario) {
        return Cell::NotApplicable(why);
    }
    let (mut summary, mut waits) = (Summary::default(), Vec::new());
    for seed in 1..=seeds {
        match stage::run(design, scenario, seed, false) {
            Ok(outcome) => {
                summary.add(seed, &outcome);
                waits.extend(outcome.measured.waits);
            }
            Err(why) => return Cell::Halted { seed, why },
        }
    }
    waits.sort_unstable();
    summary.wait_p50 = percentile(&waits, 50);
    summary.wait_p99 = percentile(&waits, 99);
    Cell::Measured(Box::new(summary))
}

/// Returns the value that `percent` percent do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let waits: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&waits, 50), Duration::from_millis(100));
        assert_eq!(percentile(&waits, 99), Duration::from_millis(198));
        assert_eq!(percentile(&waits[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
