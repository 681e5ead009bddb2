//! `rowlock check`: looks whether a machine is fit for a node, before it runs one or beside one.

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
