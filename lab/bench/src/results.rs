//! Results of a run, as stored in `results.json` and read by the reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::servers::Servers;
use crate::system::System;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// Layout of the file.
    pub version: u32,
    pub about: About,
    /// Description of the data that each system makes durable before it answers.
    pub durability: BTreeMap<System, String>,
    /// Limits of the machine: metric to value, before each workload and at the end.
    #[serde(default)]
    pub floor: Vec<BTreeMap<String, f64>>,
    /// Processor time of each system's servers without requests, in percent of one core. All servers run all
    /// the time, so this load affects every other system.
    #[serde(default)]
    pub idle_cpu_percent: BTreeMap<System, f64>,
    /// Trials in the order of their execution.
    pub trials: Vec<Trial>,
    /// Planned trials without a result, with the reason.
    pub missing: Vec<String>,
}

impl Results {
    /// Layout that this program writes.
    pub const VERSION: u32 = 1;

    /// Stores the durability and the version of servers.
    pub fn record_servers(&mut self, system: System, servers: &Servers) {
        self.durability.insert(system, servers.durability.clone());
        self.about.versions.insert(system, servers.version.clone());
    }

    /// Returns a system with the version of its servers, for tables and plots: `etcd 3.5.1`.
    pub fn label(&self, system: System) -> String {
        let version = self.about.versions.get(&system).and_then(|version| version.split(' ').nth(1));
        version.map_or_else(|| system.to_string(), |version| format!("{system} {version}"))
    }

    /// Returns the values of one metric, with their rounds.
    pub fn values<'a>(
        &'a self,
        system: System,
        workload: &'a str,
        size: u64,
        metric: &'a str,
    ) -> impl Iterator<Item = (u32, f64)> + 'a {
        let of =
            move |trial: &&Trial| trial.system == system && trial.workload == workload && trial.size == size;
        self.trials
            .iter()
            .filter(of)
            .filter_map(move |trial| Some((trial.round, *trial.metrics.get(metric)?)))
    }
}

/// Time and machine of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    /// Day and time, UTC.
    pub date: String,
    /// Command line that repeats the run.
    pub command: String,
    /// Cores that this process may use.
    pub cores: usize,
    pub machine: String,
    pub commit: String,
    /// Version of each system's servers.
    pub versions: BTreeMap<System, String>,
}

/// Single measurement of one system, in turns with the other systems: round 0 of all systems, then round 1,
/// ...
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    pub system: System,
    /// Name of the workload: `uncontended`, `contended`, `herd`, ...
    pub workload: String,
    /// Size of the workload: clients, waiters, znodes, sessions.
    pub size: u64,
    /// Trials with the same round are compared with each other.
    pub round: u32,
    /// Metric to value. Names end in their unit: `cycles_per_s`, `acquire_p50_ms`,
    /// `servers_cpu_us_per_cycle`.
    pub metrics: BTreeMap<String, f64>,
}

impl Trial {
    pub fn new(system: System, workload: &str, size: u64, round: u32) -> Self {
        Trial { system, workload: workload.to_owned(), size, round, metrics: BTreeMap::new() }
    }

    pub fn with(mut self, metric: &str, value: f64) -> Self {
        self.metrics.insert(metric.to_owned(), value);
        self
    }
}
