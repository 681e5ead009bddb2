//! `rowlock top`: shows a line per node with its rates, then the most contended locks; refreshes until a
//! signal.
//!
//! All data comes from the nodes' HTTP listeners: `/v1/status`, `/metrics`, and `/v1/locks` of the leader.
//! Rates are differences between two answers of one node: they cover the interval between both scans.

mod sample;
mod screen;

use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::{task, time};
use serde_json::{Value, json};

use crate::cluster::{Cluster, seconds};
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::http_get;
use crate::http_nodes::{Addresses, HttpNodes};
use crate::print::print;
use crate::signals::Stop;
use crate::znode::print_json;
use sample::{Rates, Sample};
use screen::Screen;

/// Deadline of one answer. A node answers from memory: a second is long.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Shortest interval: each scan is work for the nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Longest interval between the two scans of `--once`.
const ONCE_AFTER: Duration = Duration::from_secs(1);

/// Show live rates of the nodes and the most contended locks
///
/// Shows locks that world:anyone, or the owner of the token, may read.
#[derive(clap::Args)]
pub struct Top {
    /// Time between refreshes, in seconds
    #[arg(long, value_name = "SEC", value_parser = seconds, default_value = "2")]
    interval: Duration,
    /// Sample for one second, print once, and exit
    #[arg(long)]
    once: bool,
    /// Maximum number of locks; at a terminal, as many as fit
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    locks: u32,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    nodes: HttpNodes,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    /// One JSON document per sample and line.
    Json,
}

struct Scan {
    /// Samples or errors in the order of the addresses.
    nodes: Vec<(String, Result<Sample, String>)>,
    /// Report on locks, or the reason for its absence.
    locks: Result<Value, String>,
}

/// Sample of a node with its rates since the previous sample, or the reason for its absence.
type Answer = Result<(Sample, Rates), String>;

/// Scan with the rates since the previous scan.
struct Frame {
    nodes: Vec<(String, Answer)>,
    locks: Result<Value, String>,
}

impl Top {
    /// Exits with 0 at Ctrl-C; with `--once`, exits with 69 if a node does not serve, else with 0.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let addresses = self.nodes.find(&self.cluster)?.ok_or_else(|| {
            Failure::new(USAGE, "which nodes? name their HTTP addresses with --http, or use --config")
        })?;
        let mut stop = Stop::listen()?;
        tokio::select! {
            ended = self.refresh(&addresses) => ended,
            _ = stop.signal() => Ok(ExitCode::SUCCESS),
        }
    }

    async fn refresh(&self, addresses: &Addresses) -> Result<ExitCode, Failure> {
        let interval = self.interval.max(INTERVAL_MIN);
        let mut before = self.scan(addresses).await;
        if !self.once && self.output == Output::Table {
            // Draws before there are rates: a person sees at once that `top` runs.
            self.show(&before.with_rates(&before))?;
        }
        loop {
            time::sleep(if self.once { interval.min(ONCE_AFTER) } else { interval }).await;
            let now = self.scan(addresses).await;
            let shown = now.with_rates(&before);
            self.show(&shown)?;
            if self.once {
                let serves = |(_, node): &(String, Answer)| {
                    node.as_ref().is_ok_and(|(sample, _)| sample.report.serving)
                };
                let all = shown.nodes.iter().all(serves);
                return Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(UNAVAILABLE) });
            }
            before = now;
        }
    }

    async fn scan(&self, addresses: &Addresses) -> Scan {
        let fetches: Vec<_> = addresses
            .all
            .iter()
            .map(|addr| {
                let (addr, access) = (addr.clone(), addresses.access.clone());
                task::spawn("top", async move { Sample::fetch(&addr, &access).await })
            })
            .collect();
        let mut nodes = Vec::with_capacity(fetches.len());
        for (addr, answer) in addresses.all.iter().zip(fetches) {
            let sample = answer.await.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            nodes.push((addr.clone(), sample.map_err(|e| e.to_string())));
        }
        let locks = self.fetch_locks(&nodes, addresses).await;
        Scan { nodes, locks }
    }

    /// Fetches the locks from the leader, the first to apply changes, else from any serving node.
    async fn fetch_locks(
        &self,
        nodes: &[(String, Result<Sample, String>)],
        addresses: &Addresses,
    ) -> Result<Value, String> {
        if self.locks == 0 {
            return Ok(json!({ "locks": [] }));
        }
        let serving = |leads: bool| {
            nodes.iter().find(|(_, node)| {
                node.as_ref()
                    .is_ok_and(|sample| sample.report.serving && (sample.report.role == "leader" || !leads))
            })
        };
        let (addr, _) =
            serving(true).or_else(|| serving(false)).ok_or_else(|| "no node serves clients".to_owned())?;
        let path = format!("/v1/locks?limit={}", self.locks);
        http_get::json(addr, &path, &addresses.access, ANSWER_DEADLINE).await.map_err(|e| e.to_string())
    }

    fn show(&self, shown: &Frame) -> Result<(), Failure> {
        match self.output {
            Output::Json => print_json(&screen::document(shown)),
            Output::Table => print(Screen::of_stdout(!self.once).draw(shown).as_bytes()),
        }
    }
}

impl Scan {
    /// Adds the rates since the scan `before`.
    fn with_rates(&self, before: &Scan) -> Frame {
        let nodes = self.nodes.iter().zip(&before.nodes).map(|((addr, now), (_, before))| {
            let node = now.as_ref().map_err(Clone::clone).map(|now| {
                let rates = before.as_ref().map(|before| now.since(before)).unwrap_or_default();
                (now.clone(), rates)
            });
            (addr.clone(), node)
        });
        Frame { nodes: nodes.collect(), locks: self.locks.clone() }
    }
}
