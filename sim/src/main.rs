//! The `rowlock-sim` command line: simulates clusters with their clients from a seed, and prints, draws and
//! shrinks runs that break a promise. `rowlock sim` starts this program.

// These macros panic when their reader is gone: use the macros of `print`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use rowlock_terminal::print::errln;
use rowlock_terminal::{exit, paint, print, signals, table};

fn main() -> ExitCode {
    let sim = match cli::Sim::try_parse() {
        Ok(sim) => sim,
        Err(e) => {
            // A message that cannot be printed has no reader.
            let _ = e.print();
            return match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(exit::USAGE),
            };
        }
    };
    run(sim).unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            errln!("rowlock-sim: {failure}");
        }
        ExitCode::from(failure.code)
    })
}

fn run(sim: cli::Sim) -> Result<ExitCode, exit::Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| exit::Failure::new(exit::SOFTWARE, format!("cannot start the async runtime: {e}")))?;
    rowlock_env::task::block_on(&runtime, sim.run())
}
