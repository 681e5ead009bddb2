//! `rowlock version`: which program this is.

use std::process::ExitCode;

use serde_json::json;

use crate::exit::Failure;
use crate::print::print;
use crate::znode::{Output, print_json};

/// Of the commit that a package was built from.
pub const COMMIT: &str = match option_env!("ROWLOCK_COMMIT") {
    Some(commit) => commit,
    None => "unreleased",
};

/// Show the version and the commit it was built from
#[derive(clap::Args)]
pub struct Version {
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Version {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let version = env!("CARGO_PKG_VERSION");
        match self.output {
            Output::Simple => print(format!("rowlock {version} ({COMMIT})\n").as_bytes())?,
            Output::Json => print_json(&json!({ "version": version, "commit": COMMIT }))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
