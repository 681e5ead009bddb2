//! `rowlock sim run`: runs one seed, prints its story and a verdict.

use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_env::{time, worker};

use super::case::Case;
use super::options::{Common, Data};
use super::{case_file, log, print_run, save_run};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::print::print;

/// Run one seed: print what happened and whether every promise held
#[derive(clap::Args)]
pub struct Run {
    /// Seed that determines the run
    #[arg(long, value_name = "N")]
    seed: u64,
    #[command(flatten)]
    common: Common,
    /// Take the faults from this file, one per line, like `3s kill leader for 2s`
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Output options of a run.
#[derive(clap::Args)]
pub struct Output {
    /// Write a space-time diagram of the run to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print only the fingerprint of the run
    #[arg(long, conflicts_with = "html")]
    fingerprint: bool,
    /// Print the logs of nodes and clients to stderr, with simulated time: a level, or directives such as
    /// info,rowlock_consensus::raft=debug
    #[arg(long, value_name = "FILTER", conflicts_with = "fingerprint")]
    log: Option<String>,
    #[command(flatten)]
    data: Data,
}

impl Run {
    /// Runs the seed. Exit code 1: a promise was broken.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut case = self.common.case(self.seed)?;
        case.script = self.script.as_deref().map(case_file::load_script).transpose()?;
        let script = self.script.map(|file| format!(" --script {}", file.display())).unwrap_or_default();
        let again = format!("{}{script}", case.command());
        show(case, again, self.output).await
    }
}

/// Runs a case and prints the result. `again`: the command that repeats the run.
pub async fn show(case: Case, again: String, output: Output) -> Result<ExitCode, Failure> {
    if let Some(why) = case.plan(false).refusal() {
        return Err(Failure::new(USAGE, why));
    }
    if let Some(filter) = &output.log {
        log::start(filter)?;
    }
    let started = time::now();
    let (record, job) = (!output.fingerprint, case.clone());
    let outcome = worker::run_blocking("simulation", move || job.run(record)).await;
    let code = if outcome.violation.is_some() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS };
    if output.fingerprint {
        print(format!("{:016x}\n", outcome.fingerprint).as_bytes())?;
        return Ok(code);
    }
    print_run::story(&case, &outcome, started.elapsed())?;
    let kept = match outcome.violation {
        Some(_) => Some(save_run::save(&case, &outcome, &output.data.data)?),
        None => None,
    };
    if outcome.violation.is_some() {
        print(save_run::advice(&case, kept.as_ref()).as_bytes())?;
    }
    if let Some(file) = &output.html {
        print_run::page(&case, &outcome, again, file)?;
        print(format!("drawn:     {}\n", file.display()).as_bytes())?;
    }
    Ok(code)
}
