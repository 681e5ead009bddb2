//! `rowlock sim`: starts the program `rowlock-sim`, found beside this program or on the path.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::exit::{Failure, NOT_EXECUTABLE, UNAVAILABLE};

const PROGRAM: &str = "rowlock-sim";

/// Simulate clusters with partitions, crashes and failing disks, all from one seed
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Sim {
    /// Arguments of rowlock-sim; --help lists its commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Sim {
    /// Replaces this process by `rowlock-sim`. Returns only on failure.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
        let program = beside.filter(|beside| beside.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
        let error = Command::new(&program).args(self.arguments).exec();
        Err(match error.kind() {
            std::io::ErrorKind::NotFound => Failure::new(
                UNAVAILABLE,
                "cannot find rowlock-sim beside this program or on the path; from Rowlock's sources: \
                 cargo install --path sim, or cargo run --release -p rowlock-sim -- --help",
            ),
            _ => Failure::new(NOT_EXECUTABLE, format!("cannot start {}: {error}", program.display())),
        })
    }
}
