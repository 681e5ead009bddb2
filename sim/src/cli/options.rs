//! Options common to several `sim` commands.

use std::path::PathBuf;

use rowlock_env::mutant::Mistake;
use rowlock_sim::cluster::Scenario;

use super::case::{Case, NO_MUTANTS, mistake_named};
use super::case_file;
use crate::exit::{Failure, UNAVAILABLE, USAGE};

/// Default number of simulated seconds.
pub const SECONDS: u64 = 60;

/// Options common to all runs.
#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// Simulated seconds under load and faults; healing and the audit come on top
    #[arg(long, value_name = "S", default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(8..=86_400))]
    seconds: u64,
    /// Faults to draw from: all, wiped, life, cuts, blackouts, floods, calm, over-budget [default: all; for
    /// mutants, the faults that reveal each soonest]
    #[arg(long, value_name = "NAME")]
    scenario: Option<Scenario>,
    /// Run with a deliberate mistake, which the run should find: a name of `rowlock sim mutants --list`,
    /// or of `rowlock sim mutants --guards --list`
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

impl Common {
    pub fn case(&self, seed: u64) -> Result<Case, Failure> {
        let (seconds, scenario) = (self.seconds, self.scenario.unwrap_or_default());
        Ok(Case { seed, seconds, scenario, script: None, mistake: self.mistake()? })
    }

    /// Returns the requested scenario, if any.
    pub fn scenario(&self) -> Option<Scenario> {
        self.scenario
    }

    fn mistake(&self) -> Result<Option<Mistake>, Failure> {
        let named = |name: &String| {
            mistake_named(name).map_err(|e| {
                let code = if e == NO_MUTANTS { UNAVAILABLE } else { USAGE };
                Failure::new(code, e)
            })
        };
        self.mutant.as_ref().map(named).transpose()
    }
}

/// Folder of failing runs.
#[derive(clap::Args, Clone, Debug)]
pub struct Data {
    /// Folder for the files of failing runs
    #[arg(long, value_name = "DIR", default_value = "data/sim")]
    pub data: PathBuf,
}

/// A run given by its seed or by a file.
#[derive(clap::Args, Clone, Debug)]
pub struct Which {
    /// File written by a failing run
    #[arg(value_name = "FILE", required_unless_present = "seed", conflicts_with = "seed")]
    file: Option<PathBuf>,
    /// The seed to run, instead of a file
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    common: Common,
}

impl Which {
    /// Reads the case from the file, or makes the case from the seed.
    pub fn case(&self) -> Result<Case, Failure> {
        match (&self.file, self.seed) {
            (Some(file), _) => case_file::load(file),
            (None, Some(seed)) => self.common.case(seed),
            (None, None) => Err(Failure::new(USAGE, "give a file or --seed")),
        }
    }
}
