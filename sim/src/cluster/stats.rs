//! Figures of runs, which can be added up.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use rowlock_env::guard::Outcomes;
use rowlock_env::rare::Counts;
use rowlock_world::time::Nanos;

use crate::fault::Kind;
use crate::invariants::{Lateness, ModelEvents};

/// Figures of one or more runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub runs: u64,
    pub simulated: Nanos,
    pub polls: u64,
    /// Facts reported to the checkers.
    pub facts: u64,
    /// Client calls that returned successfully.
    pub acknowledged: u64,
    pub grants: u64,
    /// Lateness of what the clusters owed.
    pub lateness: Lateness,
    pub faults: BTreeMap<Kind, u64>,
    pub model_events: ModelEvents,
    /// Counts of rare branches of the code.
    pub rare: Counts,
    /// Outcomes of the guards of the code.
    pub guards: Outcomes,
}

impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, other: &Stats) {
        self.runs += other.runs;
        self.simulated = Nanos(self.simulated.0 + other.simulated.0);
        self.polls += other.polls;
        self.facts += other.facts;
        self.acknowledged += other.acknowledged;
        self.grants += other.grants;
        self.lateness += &other.lateness;
        self.rare += &other.rare;
        self.guards += &other.guards;
        self.model_events.iter_mut().zip(other.model_events).for_each(|(sum, count)| *sum += count);
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
    }
}
