//! `rowlock sim replay`: repeats the run of a file.

use std::path::PathBuf;
use std::process::ExitCode;

use super::case_file;
use super::run::{Output, show};
use crate::exit::Failure;

/// Repeat the run of a file that a failing run has written, or of your own
#[derive(clap::Args)]
pub struct Replay {
    /// Settings (seed, seconds, scenario, mutant), then `faults` and the faults, each on a line of its own
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Replay {
    /// Runs the file's case. Exit code 1: a promise was broken.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let again = format!("rowlock sim replay {}", self.file.display());
        show(case_file::load(&self.file)?, again, self.output).await
    }
}
