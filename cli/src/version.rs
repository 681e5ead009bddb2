//! `rowlock version`: shows release and commit.

use std::process::ExitCode;

use rowlock_state::version::{COMMIT, RELEASE};
use serde_json::json;

use crate::exit::Failure;
use crate::print::print;
use crate::znode::{Output, print_json};

/// Show the version and the commit it was built from
#[derive(clap::Args)]
pub struct Version {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Version {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.output {
            Output::Simple => print(format!("rowlock {RELEASE} ({COMMIT})\n").as_bytes())?,
            Output::Json => print_json(&json!({ "version": RELEASE, "commit": COMMIT }))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
