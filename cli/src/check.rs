//! `rowlock check`: measures a machine's fitness for a node, before a node runs or beside one.

mod perf;

use std::process::ExitCode;

use crate::exit::Failure;

/// Check whether this machine can run a node
#[derive(clap::Args)]
pub struct Check {
    #[command(subcommand)]
    command: CheckCommand,
}

#[derive(clap::Subcommand)]
enum CheckCommand {
    Perf(perf::Perf),
}

impl Check {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            CheckCommand::Perf(perf) => perf.run().await,
        }
    }
}
