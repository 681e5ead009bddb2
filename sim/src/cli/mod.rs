//! Commands of `rowlock-sim`: simulates clusters with their clients from a seed. For a run that breaks a
//! promise the commands print the story, draw a diagram, and reduce the script to few faults.
//!
//! options and files -> [`case::Case`] (parameters of a run) -> a thread for the run -> story, figures,
//! verdict, pages. Exit codes: 0 when every promise held, 1 when a promise was broken.

mod case;
mod case_file;
mod compare;
mod figures;
mod guards;
mod guide;
mod judge;
mod log;
mod mutants;
mod options;
#[cfg(test)]
mod pages;
mod pool;
mod run;
mod shrink;
mod swarm;

use std::process::ExitCode;

use crate::exit::Failure;

/// Run simulated clusters: partitions, crashes, failing disks, all from one seed
#[derive(clap::Parser)]
#[command(name = "rowlock-sim", version, max_term_width = 100)]
pub struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(run::Run),
    Swarm(swarm::Swarm),
    Replay(run::Replay),
    Shrink(shrink::Shrink),
    Compare(compare::Compare),
    Judge(judge::Judge),
    Mutants(mutants::Mutants),
}

impl Sim {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Run(run) => run.run().await,
            Command::Swarm(swarm) => swarm.run().await,
            Command::Replay(replay) => replay.run().await,
            Command::Shrink(shrink) => shrink.run().await,
            Command::Compare(compare) => compare.run().await,
            Command::Judge(judge) => judge.run().await,
            Command::Mutants(mutants) => mutants.run().await,
        }
    }
}
