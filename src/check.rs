//! `rowlock check`: looks whether a machine is fit for a node, before it runs one or beside one.

mod perf;

use std::process::ExitCode;

use crate::exit::Failure;

/// Check whether this machine can run a node
#[derive(clap::Args)]
pub struct Check {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Perf(perf::Perf),
}

impl Check {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Perf(perf) => perf.run().await,
        }
    }
}
