//! `rowlock debug`: diagnostics.

mod archive;
mod bundle;
mod collect;
mod redact;

use std::process::ExitCode;

use crate::exit::Failure;
use crate::help;

/// Collect diagnostics of nodes and cluster
#[derive(clap::Args)]
pub struct Debug {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(clap::Subcommand)]
enum DebugCommand {
    #[command(after_help = help::BUNDLE)]
    Bundle(bundle::Bundle),
}

impl Debug {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            DebugCommand::Bundle(bundle) => bundle.run().await,
        }
    }
}
