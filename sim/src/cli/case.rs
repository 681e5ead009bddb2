//! What to run, and its text form: a failing run writes it, `replay` and `shrink` read it.

use std::fmt;

use rowlock_env::mutant::{self, Mutant};
use rowlock_sim::cluster::{self, Outcome, Scenario, Stats};
use rowlock_sim::fault::Script;
use rowlock_sim::state;
use rowlock_world::time::Nanos;

/// Runs of the state alone are counted in steps; this many are about a minute of a cluster's life.
const STATE_STEPS: u64 = 8_000;

/// How much is real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Whole nodes and clients on a simulated network, clock, disk and scheduler
    #[default]
    Cluster,
    /// The replicated state alone: no Raft, no network, no disk, and a hundred times faster
    State,
}

/// A deliberate mistake, at the level where it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// In whole nodes and clients.
    Cluster(Mutant),
    /// Around the replicated state.
    State(state::Mutant),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Case {
    /// Everything follows from it.
    pub seed: u64,
    /// Simulated seconds under load and faults.
    pub seconds: u64,
    /// How much is real.
    pub level: Level,
    /// What goes wrong.
    pub scenario: Scenario,
    /// Exactly what goes wrong, if it does not follow from seed and scenario.
    pub script: Option<Script>,
    /// A mistake that the run should find.
    pub mistake: Option<Mistake>,
}

impl Mistake {
    /// The mistake of this name, if this build can make it.
    pub fn named(name: &str, level: Level) -> Result<Mistake, String> {
        match level {
            Level::Cluster => {
                let mutant: Mutant = name.parse().map_err(|e| {
                    let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
                    format!("{e}; there are {}", names.join(", "))
                })?;
                if mutant::AVAILABLE { Ok(Mistake::Cluster(mutant)) } else { Err(NO_MUTANTS.to_owned()) }
            }
            Level::State => {
                let known = state::MUTANTS.into_iter().find(|mutant| format!("{mutant:?}") == name);
                let unknown =
                    || format!("there is no mutant called \"{name}\"; there are {:?}", state::MUTANTS);
                known.map(Mistake::State).ok_or_else(unknown)
            }
        }
    }
}

/// Production builds hold no mistakes.
pub const NO_MUTANTS: &str = "this build makes no mistakes on purpose; build one that does with: cargo build --release -p rowlock-sim --features mutants";

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::Cluster(mutant) => f.pad(mutant.name()),
            Mistake::State(mutant) => f.pad(&format!("{mutant:?}")),
        }
    }
}

impl Case {
    /// Runs it here and now, on this thread. `record`: whether its story is wanted.
    pub fn run(&self, record: bool) -> Outcome {
        match self.level {
            Level::Cluster => cluster::run(&self.plan(record)),
            Level::State => self.run_state(),
        }
    }

    /// Its run of a whole cluster.
    pub fn plan(&self, record: bool) -> cluster::Plan {
        cluster::Plan {
            seed: self.seed,
            seconds: self.seconds,
            scenario: self.scenario,
            script: self.script.clone(),
            mutant: match self.mistake {
                Some(Mistake::Cluster(mutant)) => Some(mutant),
                _ => None,
            },
            record,
        }
    }

    fn run_state(&self) -> Outcome {
        let mutant = match self.mistake {
            Some(Mistake::State(mutant)) => Some(mutant),
            _ => None,
        };
        let plan = state::Plan { seed: self.seed, steps: STATE_STEPS, mutant, print: false };
        let outcome = state::run(plan);
        let stats = Stats { runs: 1, grants: outcome.stats.grants, ..Stats::default() };
        Outcome {
            violation: outcome.violation,
            stats,
            fingerprint: outcome.hash,
            script: Script::default(),
            record: Vec::new(),
            end: Nanos::default(),
        }
    }

    /// The command that runs it again, unless it has a script of its own.
    pub fn command(&self) -> String {
        let mut command = format!("rowlock sim run --seed {}", self.seed);
        match self.level {
            Level::Cluster => {
                command.push_str(&format!(" --seconds {} --scenario {}", self.seconds, self.scenario))
            }
            Level::State => command.push_str(" --level state"),
        }
        if let Some(mistake) = &self.mistake {
            command.push_str(&format!(" --mutant {mistake}"));
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_case_says_all_that_decides_it() {
        let case = Case {
            seed: 7,
            seconds: 30,
            level: Level::Cluster,
            scenario: Scenario::Network,
            script: None,
            mistake: Some(Mistake::Cluster(Mutant::NeverFlush)),
        };
        assert_eq!(
            case.command(),
            "rowlock sim run --seed 7 --seconds 30 --scenario network --mutant never-flush"
        );
        let state = Case { level: Level::State, mistake: None, ..case };
        assert_eq!(state.command(), "rowlock sim run --seed 7 --level state");
    }
}
