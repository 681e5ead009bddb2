//! `rowlock-bench one`: a single kind of trial, for profiling and close inspection.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::fleet::Fleet;
use crate::report;
use crate::servers::Servers;
use crate::servers::programs::Programs;
use crate::system::System;
use crate::workload::Workload;
use crate::workload::phase::Times;

/// Run one or more trials of one system, and print all metrics
#[derive(Args)]
pub struct Options {
    /// The system to measure
    #[arg(long)]
    system: System,
    /// The workload to run
    #[arg(long)]
    workload: Workload,
    /// Number of clients, waiters, sessions or znodes
    #[arg(long)]
    size: u64,
    /// Number of trials, one after another
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Measured seconds of each trial
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of warm-up with the same work
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Measure running servers: host:port,host:port (their processor time is unknown then)
    #[arg(long, value_delimiter = ',', conflicts_with = "folder")]
    attach: Vec<String>,
    /// Folder for the servers' data
    #[arg(long, default_value = "target/bench/data")]
    folder: PathBuf,
    #[command(flatten)]
    programs: Programs,
}

/// Runs the trials and prints their metrics.
///
/// # Errors
/// The servers do not come up, or a trial fails.
pub async fn run(options: Options) -> Result<()> {
    let times = Times {
        warm_up: Duration::try_from_secs_f64(options.warm_up).context("--warm-up")?,
        measured: Duration::try_from_secs_f64(options.seconds).context("--seconds")?,
    };
    let (system, workload) = (options.system, options.workload);
    if !options.attach.is_empty() {
        let mut servers = Servers::attach(system, options.attach);
        for round in 0..options.rounds {
            print(&workload.run(system, &mut servers, options.size, round, times).await?);
        }
        return Ok(());
    }
    let mut fleet = Fleet::new(&options.folder, options.programs.clone(), Duration::from_secs(20));
    for round in 0..options.rounds {
        let servers = if workload.wants_own_servers() {
            fleet.fresh(system).await?
        } else {
            fleet.servers(system).await?
        };
        if round == 0 {
            let ids: Vec<_> = servers.processes.iter().filter_map(|process| process.id()).collect();
            eprintln!("processes {ids:?}");
        }
        print(&workload.run(system, servers, options.size, round, times).await?);
        if workload.wants_own_servers() {
            fleet.end(system).await?;
        }
    }
    fleet.end_all().await
}

fn print(trial: &crate::results::Trial) {
    println!("{} {} {} round {}", trial.system, trial.workload, trial.size, trial.round);
    for (metric, value) in &trial.metrics {
        println!("    {metric:<32} {:>12}", report::number(*value));
    }
}
