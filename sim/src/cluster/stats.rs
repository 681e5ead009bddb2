//! Figures of runs, which can be added up.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use rowlock_env::rare::Counts;
use rowlock_world::time::Nanos;

use crate::fault::Kind;

/// Figures of one run or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub runs: u64,
    pub simulated: Nanos,
    pub polls: u64,
    /// Facts that the checkers have seen.
    pub facts: u64,
    /// Calls of clients that were answered.
    pub acknowledged: u64,
    /// Locks granted by the log.
    pub grants: u64,
    /// The longest time that a quiet client beside floods has waited for an answer.
    pub longest_wait: Duration,
    pub faults: BTreeMap<Kind, u64>,
    /// Rare branches of the code that were taken.
    pub rare: Counts,
}

impl AddAssign<&Stats> for Stats {
    fn add_assign(&mut self, other: &Stats) {
        self.runs += other.runs;
        self.simulated = Nanos(self.simulated.0 + other.simulated.0);
        self.polls += other.polls;
        self.facts += other.facts;
        self.acknowledged += other.acknowledged;
        self.grants += other.grants;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.rare += &other.rare;
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
    }
}
