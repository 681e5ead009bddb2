//! Parameters of a run, and their text form: a failing run writes the text, `replay` and `shrink` read it.

use rowlock_env::mutant::{self, Mistake, Mutant};
use rowlock_sim::cluster::{self, Outcome, Scenario};
use rowlock_sim::fault::Script;

#[derive(Clone, Debug)]
pub struct Case {
    /// Determines the whole run.
    pub seed: u64,
    /// Simulated seconds under load and faults.
    pub seconds: u64,
    /// Named mix of faults from which the seed draws.
    pub scenario: Scenario,
    /// Faults of the run; `None`: derived from seed and scenario.
    pub script: Option<Script>,
    /// Mistake that the run should reveal.
    pub mistake: Option<Mistake>,
}

/// Returns the mutant or guard of this name, if this build makes mistakes.
pub fn mistake_named(name: &str) -> Result<Mistake, String> {
    let mistake: Mistake = name.parse().map_err(|e| {
        let names: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        let names = names.join(", ");
        format!("{e}; there are {names}, and the guards that `rowlock sim mutants --guards --list` names")
    })?;
    if mutant::AVAILABLE { Ok(mistake) } else { Err(NO_MUTANTS.to_owned()) }
}

/// Error for a build without mutants.
pub const NO_MUTANTS: &str = "this build makes no mistakes on purpose; build one that does with: cargo build --release -p rowlock-sim --features mutants";

impl Case {
    /// Runs the case on this thread. `record` keeps the trace for the story.
    pub fn run(&self, record: bool) -> Outcome {
        cluster::run(&self.plan(record))
    }

    /// Runs the case without a story.
    pub fn run_quietly(&self) -> Outcome {
        self.run(false)
    }

    /// Returns the plan of the run.
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

    /// Returns the command that repeats the run. Incomplete for a case with a script.
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
    fn the_command_of_a_case_has_all_its_parameters() {
        let case = Case {
            seed: 7,
            seconds: 30,
            scenario: Scenario::Floods,
            script: None,
            mistake: Some(Mutant::IgnoreFailedFlush.into()),
        };
        assert_eq!(
            case.command(),
            "rowlock sim run --seed 7 --seconds 30 --scenario floods --mutant ignore-failed-flush"
        );
    }
}
