//! `rowlock __manuals`: writes a manual page per command from the text of `--help`, for packages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::Cli;
use crate::exit::{Failure, IO};

/// Write the manual pages into a folder
#[derive(clap::Args)]
pub struct Manuals {
    /// Existing folder for the pages
    folder: PathBuf,
}

impl Manuals {
    /// Writes `rowlock.1`, `rowlock-lock.1` and so on. Hidden commands have no page.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let cannot = |e| Failure::new(IO, format!("{}: {e}", self.folder.display()));
        clap_mangen::generate_to(Cli::command(), &self.folder).map_err(cannot)?;
        Ok(ExitCode::SUCCESS)
    }
}
