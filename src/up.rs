//! `rowlock up`: a whole cluster on this machine, a demonstration, and then a playground until Ctrl-C.
//!
//! plan (which nodes, where) -> folder (fresh or kept) -> nodes (child processes) -> wait until they serve -> table
//! -> demonstration with its verdict -> stay. Whatever ends it, no node is left behind.

mod demo;
mod folder;
mod nodes;
mod plan;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rowlock_coordinator::config::ClusterConfig;
use rowlock_env::net::Listener;
use rowlock_env::time;

use crate::exit::{CONFIG, Failure, IO, SOFTWARE, UNAVAILABLE};
use crate::paint::{Paint, Progress};
use crate::report::{self, Report};
use crate::signals::Stop;
use crate::table::table;
use folder::{Folder, Former};
use nodes::Nodes;
use plan::{Wishes, plan};

/// Nodes recover, elect and catch up in a second or two; a slow disk is given more.
const SERVING_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Where everything is kept unless `--data` says otherwise.
const DEFAULT_FOLDER: &str = "data/up";
const BUILT_IN: &str = include_str!("../cluster.toml");

/// Run a whole cluster on this machine and show what it does
#[derive(clap::Args)]
pub struct Up {
    /// How many nodes [default: as many as the file has]
    #[arg(long, value_name = "N", value_parser = one_three_or_five, env = "ROWLOCK_NODES")]
    nodes: Option<u16>,
    /// Skip the demonstration
    #[arg(long)]
    no_demo: bool,
    /// Stop after the demonstration instead of staying up; the exit code is its verdict
    #[arg(long, conflicts_with = "no_demo")]
    demo_only: bool,
    /// Start with what a former `up` left in the folder
    #[arg(long, conflicts_with = "fresh")]
    keep: bool,
    /// Delete what a former `up` left in the folder (the default)
    #[arg(long)]
    fresh: bool,
    /// The cluster [default: ./cluster.toml if there is one, else three nodes on ports 2181-2183]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// The folder for data and logs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_FOLDER)]
    data: PathBuf,
    /// First client port; peers listen 100 and HTTP 200 above
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,
    /// Log level of the nodes (their logs are in the folder)
    #[arg(long, value_name = "LEVEL", env = "ROWLOCK_LOG", default_value = "info")]
    log: String,
}

fn one_three_or_five(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(n @ (1 | 3 | 5)) => Ok(n),
        _ => Err("use 1, 3 or 5".to_owned()),
    }
}

/// A cluster that runs.
struct Running {
    config: ClusterConfig,
    folder: Folder,
    nodes: Nodes,
    paint: Paint,
}

impl Up {
    /// Runs until the end of the demonstration or until Ctrl-C.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let mut stop = Stop::listen()?;
        let (config, folder) = self.prepare().await?;
        let nodes = Nodes::new(folder.config(), self.log.clone())?;
        let mut cluster = Running { config, folder, nodes, paint: Paint::stdout() };
        let outcome = tokio::select! {
            outcome = self.show(&mut cluster) => outcome,
            signal = stop.signal() => {
                println!("\n{signal}: stopping the nodes");
                Ok(ExitCode::SUCCESS)
            }
        };
        // A second signal does not wait for nodes that do not end.
        tokio::select! {
            () = cluster.nodes.stop() => {}
            _ = stop.signal() => {}
        }
        outcome
    }

    async fn prepare(&self) -> Result<(ClusterConfig, Folder), Failure> {
        let here = Path::new("cluster.toml");
        let file = match &self.config {
            Some(path) => ClusterConfig::load(path),
            None if here.exists() => ClusterConfig::load(here),
            None => ClusterConfig::parse(BUILT_IN, here),
        };
        let file = file.map_err(|e| Failure::new(CONFIG, e))?;
        let root = std::path::absolute(&self.data)
            .map_err(|e| Failure::new(IO, format!("the folder {} has no place: {e}", self.data.display())))?;
        let config = plan(file, &Wishes { nodes: self.nodes, base_port: self.base_port, root: &root })?;
        for warning in &config.warnings {
            eprintln!("rowlock: warning: {warning}");
        }
        free_ports(&config).await?;
        let former = if self.keep { Former::Keep } else { Former::Fresh };
        let folder = Folder::open(&root, &config, former)?;
        Ok((config, folder))
    }

    /// Everything between the start and the stop. Only ends by itself on failure or with `--demo-only`.
    async fn show(&self, cluster: &mut Running) -> Result<ExitCode, Failure> {
        let count = cluster.config.nodes.len();
        let title = format!("Rowlock: {count} node{} on this machine", if count == 1 { "" } else { "s" });
        println!("{}", cluster.paint.bold(&title));
        cluster.start_all()?;
        let started = time::now();
        let reports = cluster.wait_until_serving().await?;
        println!("  all serve after {:.1} s\n", started.elapsed().as_secs_f64());
        cluster.print_table(&reports);
        let mut kept = true;
        if !self.no_demo {
            kept = demo::run(cluster).await?;
        }
        if self.demo_only {
            return Ok(if kept { ExitCode::SUCCESS } else { ExitCode::from(SOFTWARE) });
        }
        cluster.print_what_to_try();
        cluster.watch_over().await
    }
}

/// Says which port is taken before any node is started, since a node can only say it in its log.
async fn free_ports(config: &ClusterConfig) -> Result<(), Failure> {
    for node in &config.nodes {
        for (what, addr) in
            [("client", &node.client_addr), ("peer", &node.peer_addr), ("http", &node.http_addr)]
        {
            if let Err(e) = Listener::bind(addr).await {
                let what = format!("cannot listen on {addr} ({what} of node {}): {e}", node.id);
                let remedy = "stop what listens there, or choose other ports with --base-port";
                return Err(Failure::new(UNAVAILABLE, format!("{what}; {remedy}")));
            }
        }
    }
    Ok(())
}

impl Running {
    fn ids(&self) -> Vec<u64> {
        self.config.nodes.iter().map(|node| node.id.0).collect()
    }

    fn start_all(&mut self) -> Result<(), Failure> {
        self.ids().into_iter().try_for_each(|id| self.start(id))
    }

    fn start(&mut self, id: u64) -> Result<(), Failure> {
        self.nodes.start(id, &self.folder.log(id))
    }

    async fn reports(&self) -> Vec<std::io::Result<Report>> {
        let addrs: Vec<String> = self.config.nodes.iter().map(|node| node.http_addr.clone()).collect();
        report::fetch_all(&addrs).await
    }

    /// The node that leads, as the nodes that serve say.
    async fn leader(&self) -> Option<u64> {
        let reports = self.reports().await;
        let serving = reports.into_iter().flatten().filter(|r| r.serving);
        serving.max_by_key(|r| r.term).and_then(|r| r.leader)
    }

    async fn wait_until_serving(&mut self) -> Result<Vec<Report>, Failure> {
        let deadline = time::now() + SERVING_DEADLINE;
        let mut progress = Progress::new(self.paint);
        loop {
            if let Some((id, status)) = self.nodes.ended() {
                progress.done();
                return Err(self.node_failed(id, &status.to_string()));
            }
            let reports = self.reports().await;
            let ids = self.ids();
            let words: Vec<String> =
                ids.iter().zip(&reports).map(|(id, r)| format!("node {id} {}", standing(r))).collect();
            let serving: Vec<Report> = reports.into_iter().flatten().filter(|r| r.serving).collect();
            if serving.len() == ids.len() && serving.iter().all(|r| r.leader.is_some()) {
                progress.done();
                return Ok(serving);
            }
            progress.show(&words.join(", "));
            if time::now() >= deadline {
                progress.done();
                let what = format!(
                    "the nodes do not serve after {} s ({})",
                    SERVING_DEADLINE.as_secs(),
                    words.join(", ")
                );
                let log = self.folder.log(ids[0]);
                return Err(Failure::new(
                    UNAVAILABLE,
                    format!("{what}; their logs are beside {}", log.display()),
                ));
            }
            time::sleep(POLL).await;
        }
    }

    fn node_failed(&self, id: u64, status: &str) -> Failure {
        let log = self.folder.log(id);
        let said = self.folder.last_log_line(id).unwrap_or_else(|| "it said nothing".to_owned());
        Failure::new(UNAVAILABLE, format!("node {id} ended ({status}): {said}; its log is {}", log.display()))
    }

    fn print_table(&self, reports: &[Report]) {
        let rows: Vec<[String; 5]> = self
            .config
            .nodes
            .iter()
            .zip(reports)
            .map(|(node, report)| {
                let http = format!("http://{}", node.http_addr);
                [
                    node.id.to_string(),
                    report.role.clone(),
                    node.client_addr.clone(),
                    node.peer_addr.clone(),
                    http,
                ]
            })
            .collect();
        for line in table(["node", "role", "clients", "peers", "http"], &rows).lines() {
            println!("  {line}");
        }
        println!();
    }

    fn print_what_to_try(&self) {
        let endpoints = self.config.endpoints();
        let first = &self.config.nodes[0];
        println!("{}", self.paint.bold("The cluster stays up until Ctrl-C. In another terminal, try:"));
        println!("  export ROWLOCK_ENDPOINTS={endpoints}");
        println!("  export ROWLOCK_CONFIG={}", self.folder.config().display());
        println!("  rowlock status                                   # roles, positions, sessions");
        println!(
            "  rowlock lock nightly -- sh -c 'echo $ROWLOCK_LOCK_TOKEN; sleep 20'   # twice: the second waits"
        );
        println!("  rowlock create /config 'v1' && rowlock get /config");
        println!("  curl http://{}/metrics", first.http_addr);
        if let Some((id, pid)) = self.ids().iter().find_map(|id| Some((*id, self.nodes.pid(*id)?))) {
            println!(
                "  kill -9 {pid}                                  # node {id}: it is started again here"
            );
        }
        println!(
            "  {}",
            self.paint.dim("(rowlock is target/release/rowlock, or `cargo run -q --release --`)")
        );
    }

    /// Starts a node again that ended, until the process is told to stop.
    async fn watch_over(&mut self) -> Result<ExitCode, Failure> {
        let mut last_restart = time::now();
        loop {
            time::sleep(POLL).await;
            let Some((id, status)) = self.nodes.ended() else { continue };
            // A node that cannot start would be started for ever.
            if last_restart.elapsed() < Duration::from_secs(2) {
                return Err(self.node_failed(id, &status.to_string()));
            }
            println!("  node {id} ended ({status}): starting it again");
            last_restart = time::now();
            self.start(id)?;
        }
    }
}

fn standing(report: &std::io::Result<Report>) -> &'static str {
    match report {
        Ok(r) if r.serving => "serves",
        Ok(r) if r.leader.is_some() => "catches up",
        Ok(_) => "elects",
        Err(_) => "starts",
    }
}
