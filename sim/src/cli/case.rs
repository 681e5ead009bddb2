//! What to run, and its text form: a failing run writes it, `replay` and `shrink` read it.

use rowlock_env::mutant::{self, Mutant};
use rowlock_sim::cluster::{self, Outcome, Scenario};
use rowlock_sim::fault::Script;

#[derive(Clone, Debug)]
pub struct Case {
    /// Determines the whole run.
    pub seed: u64,
    /// Simulated seconds under load and faults.
    pub seconds: u64,
    /// The kinds of faults that the seed draws from.
    pub scenario: Scenario,
    /// Exactly what goes wrong, if it does not follow from seed and scenario.
    pub script: Option<Script>,
    /// A mistake that the run should find.
    pub mistake: Option<Mutant>,
}

/// The mistake of this name, if this build can make it.
pub fn mistake_named(name: &str) -> Result<Mutant, String> {
    let mutant: Mutant = name.parse().map_err(|e| {
        let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        format!("{e}; there are {}", names.join(", "))
    })?;
    if mutant::AVAILABLE { Ok(mutant) } else { Err(NO_MUTANTS.to_owned()) }
}

/// Production builds hold no mistakes.
pub const NO_MUTANTS: &str = "this build makes no mistakes on purpose; build one that does with: cargo build --release -p rowlock-sim --features mutants";

impl Case {
    /// Runs it here and now, on this thread. `record`: whether its story is wanted.
    pub fn run(&self, record: bool) -> Outcome {
        cluster::run(&self.plan(record))
    }

    /// Runs it without a story.
    pub fn run_quietly(&self) -> Outcome {
        self.run(false)
    }

    /// Its run of a whole cluster.
    pub fn plan(&self, record: bool) -> cluster::Plan {
        cluster::Plan {
            seed: self.seed,
            seconds: self.seconds,
            scenario: self.scenario,
            script: self.script.clone(),
            mutant: self.mistake,
            record,
        }
    }

    /// The command that runs it again, unless it has a script of its own.
    pub fn command(&self) -> String {
        let Case { seed, seconds, scenario, .. } = self;
        let mut command = format!("rowlock sim run --seed {seed} --seconds {seconds} --scenario {scenario}");
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
            scenario: Scenario::Network,
            script: None,
            mistake: Some(Mutant::NeverFlush),
        };
        assert_eq!(
            case.command(),
            "rowlock sim run --seed 7 --seconds 30 --scenario network --mutant never-flush"
        );
    }
}
