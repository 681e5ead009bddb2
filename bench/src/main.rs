//! `rowlock-bench`: the same work on Rowlock and on what people use instead, taken in turns on one machine.

mod drivers;
mod grpc;
mod latency;
mod protobuf;
mod results;
mod servers;
mod system;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use results::Trial;
use servers::Servers;
use system::System;
use workload::uncontended::Times;

/// Measures lock services against each other
#[derive(Parser)]
#[command(name = "rowlock-bench")]
struct Options {
    /// Which systems, by their names
    #[arg(long, value_delimiter = ',', default_value = "rowlock")]
    systems: Vec<System>,
    /// Numbers of clients that have a lock each
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    uncontended: Vec<usize>,
    /// Numbers of clients that share one lock
    #[arg(long, value_delimiter = ',')]
    contended: Vec<usize>,
    /// Measured seconds per trial
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Trials of each kind
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Where servers keep their data
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let times =
        Times { warm_up: Duration::from_millis(500), measured: Duration::from_secs_f64(options.seconds) };
    for system in &options.systems {
        let folder = options.folder.join(system.name());
        let _ = std::fs::remove_dir_all(&folder);
        let servers = Servers::start(*system, &folder).await?;
        for round in 0..options.rounds {
            for clients in &options.uncontended {
                print(&workload::uncontended::run(*system, &servers, *clients, round, times).await?);
            }
            for clients in &options.contended {
                print(&workload::contended::run(*system, &servers, *clients, round, times).await?);
            }
        }
    }
    Ok(())
}

fn print(trial: &Trial) {
    println!("{} {} {} round {}", trial.system, trial.workload, trial.size, trial.round);
    for (metric, value) in &trial.metrics {
        println!("    {metric:<28} {value:>12.3}");
    }
}
