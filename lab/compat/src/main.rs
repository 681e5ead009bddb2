//! `rowlock-compat`: compares Rowlock with ZooKeeper. `diff` compares Rowlock with Apache ZooKeeper on random
//! request sequences, `fuzz` sends broken frames to a listener. A tool of this repository, not shipped.

mod answer;
mod clean;
mod connection;
mod dialect;
mod diff;
mod fuzz;
mod generate;
mod minimise;
mod player;
mod script;
mod transcript;

use std::process::ExitCode;

use clap::Parser;

/// Compares Rowlock with Apache ZooKeeper, and fuzzes its listener
#[derive(Parser)]
#[command(name = "rowlock-compat", max_term_width = 100)]
enum Cli {
    Diff(diff::Diff),
    Fuzz(fuzz::Fuzz),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse() {
        Cli::Diff(diff) => diff.run().await,
        Cli::Fuzz(fuzz) => fuzz.run().await,
    };
    result.unwrap_or_else(|error| {
        eprintln!("rowlock-compat: {error:#}");
        ExitCode::from(2)
    })
}
