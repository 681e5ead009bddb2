//! `rowlock top`: what the cluster does at the moment. A line per node with its rates, then the most
//! contended locks; refreshed until a signal.
//!
//! All of it comes from the nodes' HTTP listeners: `/v1/status`, `/metrics`, and `/v1/locks` of the leader.
//! Rates are differences between two answers of one node, so they belong to the interval that was waited.

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

/// A node answers from memory; a second is long.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Each look is work for the nodes.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// With `--once`: between the two looks that rates are made of, at most.
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
    /// Aligned columns, for people.
    #[default]
    Table,
    /// One JSON document a line for each sample.
    Json,
}

/// One look at the whole cluster.
struct Look {
    /// In the order of the addresses.
    nodes: Vec<(String, Result<Sample, String>)>,
    /// Of the report on locks, or why there is none.
    locks: Result<Value, String>,
}

/// What a node has answered, beside what it answered before; or why it has not.
type Answer = Result<(Sample, Rates), String>;

/// What a look shows beside the one before it.
struct Shown {
    nodes: Vec<(String, Answer)>,
    locks: Result<Value, String>,
}

impl Top {
    /// Ends with 0 at Ctrl-C, and with `--once`; with 69 if a node does not serve then.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let addresses = self.nodes.find(&self.cluster)?.ok_or_else(|| {
            Failure::new(USAGE, "which nodes? name their HTTP addresses with --http, or give --config")
        })?;
        let mut stop = Stop::listen()?;
        tokio::select! {
            ended = self.go_on(&addresses) => ended,
            _ = stop.signal() => Ok(ExitCode::SUCCESS),
        }
    }

    async fn go_on(&self, addresses: &Addresses) -> Result<ExitCode, Failure> {
        let interval = self.interval.max(INTERVAL_MIN);
        let mut before = self.look(addresses).await;
        if !self.once && self.output == Output::Table {
            // A person sees at once that something is there; rates come with the second look.
            self.show(&before.beside(&before))?;
        }
        loop {
            time::sleep(if self.once { interval.min(ONCE_AFTER) } else { interval }).await;
            let now = self.look(addresses).await;
            let shown = now.beside(&before);
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

    async fn look(&self, addresses: &Addresses) -> Look {
        let asked: Vec<_> = addresses
            .all
            .iter()
            .map(|addr| {
                let (addr, way) = (addr.clone(), addresses.way.clone());
                task::spawn("top", async move { Sample::fetch(&addr, &way).await })
            })
            .collect();
        let mut nodes = Vec::with_capacity(asked.len());
        for (addr, answer) in addresses.all.iter().zip(asked) {
            let sample = answer.await.unwrap_or_else(|e| Err(std::io::Error::other(e)));
            nodes.push((addr.clone(), sample.map_err(|e| e.to_string())));
        }
        let locks = self.ask_locks(&nodes, addresses).await;
        Look { nodes, locks }
    }

    /// The leader knows first who waits; any other node that serves will do.
    async fn ask_locks(
        &self,
        nodes: &[(String, Result<Sample, String>)],
        addresses: &Addresses,
    ) -> Result<Value, String> {
        if self.locks == 0 {
            return Ok(json!({ "locks": [] }));
        }
        let serving = |wanted: bool| {
            nodes.iter().find(|(_, node)| {
                node.as_ref().is_ok_and(|it| it.report.serving && (it.report.role == "leader" || !wanted))
            })
        };
        let (addr, _) =
            serving(true).or_else(|| serving(false)).ok_or_else(|| "no node serves clients".to_owned())?;
        let path = format!("/v1/locks?limit={}", self.locks);
        http_get::json(addr, &path, &addresses.way, ANSWER_DEADLINE).await.map_err(|e| e.to_string())
    }

    fn show(&self, shown: &Shown) -> Result<(), Failure> {
        match self.output {
            Output::Json => print_json(&screen::document(shown)),
            Output::Table => print(Screen::of_stdout(!self.once).draw(shown).as_bytes()),
        }
    }
}

impl Look {
    /// With the rates since the look before.
    fn beside(&self, before: &Look) -> Shown {
        let nodes = self.nodes.iter().zip(&before.nodes).map(|((addr, now), (_, before))| {
            let node = now.as_ref().map_err(Clone::clone).map(|now| {
                let rates = before.as_ref().map(|before| now.since(before)).unwrap_or_default();
                (now.clone(), rates)
            });
            (addr.clone(), node)
        });
        Shown { nodes: nodes.collect(), locks: self.locks.clone() }
    }
}
