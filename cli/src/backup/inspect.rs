//! `rowlock backup inspect` and `rowlock backup verify`: show a backup's header, and check its content.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_backup::file::Source;
use rowlock_backup::file::{self, BackupError};

use super::{described, document};
use crate::exit::{Failure, IO, REFUSED};
use crate::print::print;
use crate::znode::{Output, print_json};

/// Show a backup's header. `verify` reads the rest
#[derive(clap::Args)]
pub struct Inspect {
    #[command(flatten)]
    options: InspectOptions,
}

/// Check every byte of a backup and build its state
#[derive(clap::Args)]
pub struct Verify {
    #[command(flatten)]
    options: InspectOptions,
}

#[derive(clap::Args)]
struct InspectOptions {
    /// Path of the backup file
    file: PathBuf,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Inspect {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let header = file::inspect(open(&self.options.file)?).map_err(|e| refused(&self.options.file, &e))?;
        match self.options.output {
            Output::Simple => print(described(&header).as_bytes())?,
            Output::Json => print_json(&document(&header, &self.options.file))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Verify {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let read = file::read(open(&self.options.file)?);
        let (header, _) = read.map_err(|e| refused(&self.options.file, &e))?;
        match self.options.output {
            Output::Simple => {
                print(format!("{}every byte is as it was written\n", described(&header)).as_bytes())?
            }
            Output::Json => print_json(&document(&header, &self.options.file))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(super) fn open(path: &std::path::Path) -> Result<Source, Failure> {
    Source::open(path).map_err(|e| Failure::new(IO, format!("{}: {e}", path.display())))
}

pub(super) fn refused(path: &std::path::Path, error: &BackupError) -> Failure {
    let code = if matches!(error, BackupError::Io(_)) { IO } else { REFUSED };
    Failure::new(code, format!("{} {error}", path.display()))
}
