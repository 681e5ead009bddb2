//! `rowlock debug bundle`: collects diagnostics of nodes, cluster and machine in one archive.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_env::time;

use super::archive::Archive;
use super::collect::Collector;
use super::redact::Redactor;
use crate::cluster::{Cluster, seconds};
use crate::exit::{DATA_FOLDER, Failure, IO};
use crate::http_nodes::HttpNodes;
use crate::moment;
use crate::print::print;

/// Collect diagnostics into one archive, without secrets
///
/// Status and metrics (twice) of each node, cluster.toml, the most contended queues, the end of the history,
/// findings of `rowlock doctor`; of nodes on this machine also the headers of their write-ahead logs and the
/// last log lines. Run it on each machine.
#[derive(clap::Args)]
pub struct Bundle {
    /// Output file, e.g. bundle.tar.gz, created with mode 0600
    file: PathBuf,
    /// Seconds between the two samples of the metrics
    #[arg(long, value_name = "SEC", value_parser = seconds, default_value = "2")]
    interval: Duration,
    /// Log file of a node that logs neither to the journal (units rowlock*) nor to the folder of `rowlock
    /// up`
    #[arg(long, value_name = "FILE")]
    log_file: Vec<PathBuf>,
    #[command(flatten)]
    nodes: HttpNodes,
    #[command(flatten)]
    cluster: Cluster,
}

impl Bundle {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        let (file, addresses) = (self.cluster.file()?, self.nodes.find(&self.cluster)?);
        let now_ms = time::wall_ms();
        let time_s = u64::try_from(now_ms / 1_000).unwrap_or_default();
        let folder = format!("rowlock-debug-{time_s}");
        let archive = Archive::create(&self.file, &folder, time_s).map_err(|e| {
            let hint = if e.kind() == ErrorKind::AlreadyExists { "; name another" } else { "" };
            Failure::new(DATA_FOLDER, format!("{}: {e}{hint}", self.file.display()))
        })?;
        let environment =
            ["ROWLOCK_AUTH", "ROWLOCK_TOKEN"].map(|name| std::env::var(name).unwrap_or_default());
        let known = file.iter().flat_map(|file| file.secrets());
        let redactor = Redactor::new(known.chain(environment.iter().map(String::as_str)));
        let mut collector = Collector { archive, redactor, missing: Vec::new() };
        let done = self.collect(&mut collector, file.as_ref(), addresses.as_ref()).await;
        let disk = |e| Failure::new(IO, format!("{}: {e}", self.file.display()));
        done.map_err(disk)?;
        let missing = collector.missing.clone();
        let bytes = collector.finish(&moment::rfc3339(now_ms)).map_err(disk)?;
        let mut summary = format!("{} ({} KiB)\n", self.file.display(), bytes.div_ceil(1 << 10));
        for (part, why) in &missing {
            summary.push_str(&format!("without {part}: {why}\n"));
        }
        print(summary.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn collect(
        &self,
        to: &mut Collector,
        file: Option<&rowlock_coordinator::ClusterConfig>,
        addresses: Option<&crate::http_nodes::Addresses>,
    ) -> std::io::Result<()> {
        match file {
            Some(file) => to.add("cluster.toml", &file.clone().without_secrets().to_toml())?,
            None => to.lacks("cluster.toml", "no file was named, and there is none here"),
        }
        match addresses {
            Some(addresses) => {
                to.metrics(addresses, "metrics-1.txt").await?;
                to.nodes(addresses).await?;
                to.reports(addresses).await?;
                time::sleep(self.interval).await;
                to.metrics(addresses, "metrics-2.txt").await?;
            }
            None => to.lacks("status, metrics, queues, history", "no HTTP addresses; use --http or --config"),
        }
        to.doctor(&self.cluster).await?;
        if let Some(file) = file {
            to.folders(file).await?;
        }
        to.logs(&self.log_file, file).await
    }
}
