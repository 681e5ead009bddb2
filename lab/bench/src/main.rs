//! `rowlock-bench`: the same work on Rowlock and on its alternatives, in turns on one machine.
//!
//! A [`plan`] orders the trials, [`run`] executes the trials on the servers of a [`fleet`], each trial is one
//! of the [`workload`]s on [`drivers`], and [`report`] writes tables and plots of the [`results`].

#![allow(clippy::disallowed_methods, reason = "a load generator: nothing of it is simulated")]

mod about;
mod drivers;
mod fleet;
mod grpc;
mod latency;
mod limit;
mod one;
mod plan;
mod protobuf;
mod report;
mod results;
mod run;
mod servers;
mod system;
mod workload;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// The server's allocator, for the clients of all systems alike: glibc's allocator took a sixth of the load
/// generator's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compare lock services by the same work
#[derive(Parser)]
#[command(name = "rowlock-bench", max_term_width = 100)]
enum Cli {
    Run(run::Options),
    One(one::Options),
    /// Clients of the workload `storm`
    Crowd(workload::crowd::Options),
    /// Write tables and plots again, from the results of a run
    Report {
        /// results.json of a run
        results: PathBuf,
        /// Folder of the report [default: beside the results]
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    limit::raise_open_files();
    match cli {
        Cli::Run(options) => run::run(options).await,
        Cli::One(options) => one::run(options).await,
        Cli::Crowd(options) => workload::crowd::run(options).await,
        Cli::Report { results, out } => report::again(&results, out.as_deref()),
    }
}
