//! `rowlock-bench run`: executes the trials of a plan in sequence and writes the report.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::fleet::Fleet;
use crate::plan::{Plan, Step};
use crate::results::{Results, Trial};
use crate::servers::programs::Programs;
use crate::system::System;
use crate::workload::{Workload, floor};
use crate::{about, report};

/// Time per figure of the floor.
const FLOOR: Duration = Duration::from_millis(500);
/// Time for which the idle servers are measured.
const IDLE: Duration = Duration::from_secs(5);
/// Excess over its own time after which a trial is aborted, and its servers are restarted.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Measure and compare; the report goes into a folder
#[derive(Args)]
pub struct Options {
    /// Run the most important rows only, in two minutes
    #[arg(long)]
    quick: bool,
    /// Measure the cost of operations while sessions, znodes, queues, watches, locks and paths grow
    #[arg(long, conflicts_with = "quick")]
    scale: bool,
    /// Measure Rowlock when all clients return at once, and beyond its capacity
    #[arg(long, conflicts_with_all = ["quick", "scale"])]
    pressure: bool,
    /// Run these systems only
    #[arg(long, value_delimiter = ',')]
    systems: Vec<System>,
    /// Run these workloads only
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Number of trials of each kind
    #[arg(long)]
    rounds: Option<u32>,
    /// Measured seconds of a trial
    #[arg(long)]
    seconds: Option<f64>,
    /// Folder for results.json, report.md and plots
    #[arg(long, default_value = "target/bench/report")]
    out: PathBuf,
    /// Folder for the servers' data
    #[arg(long, default_value = "target/bench/data")]
    folder: PathBuf,
    #[command(flatten)]
    programs: Programs,
}

/// Runs the plan and writes the report.
///
/// # Errors
/// The report cannot be written, or a floor cannot be measured. A failed trial only adds a line to the
/// report.
pub async fn run(options: Options) -> Result<()> {
    let plan = match (options.quick, options.scale, options.pressure) {
        (true, ..) => Plan::quick(),
        (_, true, _) => Plan::scale(crate::limit::open_files()),
        (.., true) => Plan::pressure(),
        _ => Plan::whole(),
    };
    let seconds = options.seconds.map(Duration::try_from_secs_f64).transpose().context("--seconds")?;
    let plan = plan.changed(&options.systems, &options.workloads, options.rounds, seconds);
    let java_warm_up = Duration::from_secs(if options.quick { 12 } else { 25 });
    let mut run = Run {
        fleet: Fleet::new(&options.folder, options.programs.clone(), java_warm_up),
        results: Results { version: Results::VERSION, about: about::here(), ..Results::default() },
        absent: BTreeSet::new(),
    };
    let begun = Instant::now();
    let steps = plan.steps();
    let shared: BTreeSet<System> =
        steps.iter().filter(|step| !step.workload.wants_own_servers()).map(|step| step.system).collect();
    run.start(&shared).await?;
    let mut last = None;
    for (n, step) in steps.iter().enumerate() {
        if last != Some(step.workload) {
            run.floor(&options)?;
            last = Some(step.workload);
        }
        if run.absent.contains(&step.system) {
            continue;
        }
        run.step(*step, &format!("{:3}/{}", n + 1, steps.len())).await;
        report::keep(&run.results, &options.out)?;
    }
    run.floor(&options)?;
    run.fleet.end_all().await?;
    report::write(&run.results, &options.out)?;
    for line in &run.results.missing {
        eprintln!("missing: {line}");
    }
    eprintln!("{:.0} s; the report is in {}", begun.elapsed().as_secs_f64(), options.out.display());
    Ok(())
}

struct Run {
    fleet: Fleet,
    results: Results,
    /// Systems whose servers do not start.
    absent: BTreeSet<System>,
}

impl Run {
    /// Starts every system's servers, so that all trials have the same neighbors.
    async fn start(&mut self, systems: &BTreeSet<System>) -> Result<()> {
        for system in systems {
            match self.fleet.servers(*system).await {
                Ok(servers) => {
                    self.results.record_servers(*system, servers);
                }
                Err(error) => {
                    self.miss(format!("{system}: {error:#}"));
                    self.absent.insert(*system);
                }
            }
        }
        self.results.idle_cpu_percent = self.fleet.idle_cpu_percent(IDLE).await?;
        for (system, percent) in &self.results.idle_cpu_percent {
            eprintln!("idle servers of {system}: {percent:.1} % of a core");
        }
        Ok(())
    }

    fn floor(&mut self, options: &Options) -> Result<()> {
        let floor = floor::run(&options.folder, FLOOR).context("the floor")?;
        for (metric, value) in &floor {
            eprintln!("floor: {metric} {}", report::number(*value));
        }
        self.results.floor.push(floor);
        Ok(())
    }

    async fn step(&mut self, step: Step, progress: &str) {
        let Step { system, workload, size, round, .. } = step;
        let what = format!("{workload} {size} {system}, round {round}");
        match self.trial(step).await {
            Ok(trial) => {
                let headline = report::headline(workload.name());
                let value = headline.and_then(|headline| trial.metrics.get(headline.metric));
                let value = value.map_or_else(String::new, |value| report::number(*value));
                eprintln!("{progress}  {what}: {value}");
                self.results.trials.push(trial);
            }
            Err(error) => {
                self.miss(format!("{what}: {error:#}"));
                // The failed servers may be in any state, so the next trial gets new ones.
                if let Err(error) = self.fleet.end(system).await {
                    self.miss(format!("{system} from here on: {error:#}"));
                    self.absent.insert(system);
                }
            }
        }
    }

    async fn trial(&mut self, step: Step) -> Result<Trial> {
        let Step { system, workload, size, round, times } = step;
        let limit = times.warm_up + times.measured + WAIT_MAX;
        let servers = if workload.wants_own_servers() {
            // No other servers run: the growing servers must not compete with idle servers for memory.
            self.fleet.end_all().await?;
            self.fleet.fresh(system).await?
        } else {
            self.fleet.servers(system).await?
        };
        self.results.record_servers(system, servers);
        let trial = tokio::time::timeout(limit, workload.run(system, servers, size, round, times)).await;
        if workload.wants_own_servers() {
            self.fleet.end(system).await?;
        }
        trial.map_err(|_| anyhow!("given up after {limit:?}"))?
    }

    fn miss(&mut self, line: String) {
        eprintln!("missing: {line}");
        self.results.missing.push(line);
    }
}
