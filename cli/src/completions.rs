//! `rowlock completions`: shell completions of the command line.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::Cli;
use crate::exit::Failure;
use crate::print::print;

/// Print shell completions, e.g. `source <(rowlock completions bash)`
#[derive(clap::Args)]
pub struct Completions {
    /// Shell to generate completions for
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let all = Cli::command();
        // Omits hidden commands: some shells' scripts would offer them.
        let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        let mut command = clap::Command::new("rowlock").subcommands(shown);
        let mut script = Vec::new();
        generate(self.shell, &mut command, "rowlock", &mut script);
        print(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
