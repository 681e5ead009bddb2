//! `rowlock up`: starts a whole cluster on this machine, runs a demonstration, and stays up until Ctrl-C.
//!
//! plan (cluster.toml changed by flags) -> folder (fresh or kept) -> nodes (child processes) -> wait until
//! all nodes serve -> table -> demonstration with its verdict -> stay. At every exit all nodes are stopped.

mod demo;
pub mod dev;
mod folder;
mod running;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_env::net::Listener;
use rowlock_env::time;
use rowlock_proto::NodeId;
use running::Nodes;

use self::folder::{ExistingData, Folder};
use self::running::Running;
use crate::cluster::{TlsOptions, UP_FOLDER};
use crate::exit::{CONFIG, Failure, IO, SOFTWARE, UNAVAILABLE, USAGE};
use crate::http_get::{self, TokenOption};
use crate::paint::Paint;
use crate::print::{count, errln, outln, reader_gone};
use crate::signals::Stop;
use crate::{found, log_filter};

const BUILT_IN: &str = include_str!("../cluster.toml");

/// Run a whole cluster on this machine, with a demonstration
#[derive(clap::Args)]
pub struct Up {
    /// Number of nodes [default: as many as cluster.toml has]
    #[arg(long, value_name = "N", value_parser = one_three_or_five, env = "ROWLOCK_NODES")]
    nodes: Option<u16>,
    /// Start the nodes without the demonstration
    #[arg(long)]
    no_demo: bool,
    /// Run the demonstration on free ports and in a temporary folder, and exit with its verdict. With
    /// --config, --base-port, --data or --keep it uses those instead
    #[arg(long, conflicts_with = "no_demo")]
    check: bool,
    /// Keep the data of the last run
    #[arg(long, conflicts_with = "fresh")]
    keep: bool,
    /// Delete the data of the last run (the default)
    #[arg(long)]
    fresh: bool,
    /// Path of cluster.toml [default: ./cluster.toml if it exists, else three nodes on ports 2181-2183]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Folder for data and logs [default: data/up]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// First client port; peers listen 100 and HTTP 200 above
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,
    /// Use TLS everywhere: create certificates for nodes and a client in the folder, and require them
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    token: TokenOption,
    #[command(flatten)]
    client_tls: TlsOptions,
    /// Log level of the nodes; their logs are in the folder
    #[arg(long, value_name = "LEVEL", env = "ROWLOCK_LOG", default_value = "info")]
    log: String,
}

fn one_three_or_five(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(n @ (1 | 3 | 5)) => Ok(n),
        _ => Err("use 1, 3 or 5".to_owned()),
    }
}

impl Up {
    /// Runs until the end of the demonstration or until Ctrl-C.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        log_filter::check(&self.log)?;
        let stop = Stop::listen()?;
        let (config, folder) = self.prepare().await?;
        let cert = self.tls.then(|| folder::make(&config, folder.path())).transpose()?;
        let http = self.http(&config, cert.as_ref())?;
        let nodes = Nodes::new(folder.config(), self.log.clone());
        let mut cluster = Running { config, folder, nodes, cert, http, paint: Paint::stdout() };
        let outcome = until_stopped(&mut cluster, stop, async |cluster| self.show(cluster).await).await;
        match &outcome {
            // Keeps the folder of a failed run for analysis.
            Ok(code) if self.is_temporary() && *code == ExitCode::SUCCESS => cluster.folder.remove(),
            _ => cluster.folder.print_kept(),
        }
        outcome
    }

    /// Returns true if the folder is deleted at the end.
    fn is_temporary(&self) -> bool {
        self.check && self.data.is_none() && !self.keep
    }

    fn root(&self) -> Result<PathBuf, Failure> {
        let folder = match &self.data {
            Some(folder) => folder.clone(),
            None if self.is_temporary() => {
                std::env::temp_dir().join(format!("rowlock-check-{}", std::process::id()))
            }
            None => PathBuf::from(UP_FOLDER),
        };
        std::path::absolute(&folder)
            .map_err(|e| Failure::new(IO, format!("no absolute path of {}: {e}", folder.display())))
    }

    /// Returns TLS and token for the nodes' HTTP.
    fn http(
        &self,
        config: &ClusterConfig,
        cert: Option<&folder::CertPaths>,
    ) -> Result<http_get::HttpAccess, Failure> {
        if let Some(cert) = cert {
            return Ok(http_get::HttpAccess { secure: Some(cert.secure()?), token: None });
        }
        let addrs: Vec<String> = config.nodes.iter().map(|node| node.http_addr.clone()).collect();
        self.token.access(config.http.tls, &self.client_tls, &addrs)
    }

    async fn prepare(&self) -> Result<(ClusterConfig, Folder), Failure> {
        let here = Path::new(found::CLUSTER_FILE);
        let file = match found::cluster_file_if_any(self.config.as_deref())? {
            Some(file) => file,
            None => ClusterConfig::parse(BUILT_IN, here).map_err(|e| Failure::new(CONFIG, e))?,
        };
        let root = self.root()?;
        if self.data.is_none() && !self.is_temporary() {
            found::check(Path::new(UP_FOLDER), "--data")?;
        }
        let options =
            PlanOptions { nodes: self.nodes, base_port: self.base_port, tls: self.tls, root: &root };
        let mut config = plan(file, &options)?;
        if self.check && self.config.is_none() && self.base_port.is_none() && !here.exists() {
            dev::on_free_ports(&mut config).await?;
        }
        for warning in &config.warnings {
            errln!("rowlock: warning: {warning}");
        }
        free_ports(&config, "stop the process that listens there, or choose other ports with --base-port")
            .await?;
        let existing = if self.keep { ExistingData::Keep } else { ExistingData::Fresh };
        let folder = Folder::open(&root, &mut config, existing)?;
        Ok((config, folder))
    }

    /// Starts the nodes, runs the demonstration, supervises. Returns only on failure or with `--check`.
    async fn show(&self, cluster: &mut Running) -> Result<ExitCode, Failure> {
        let nodes = cluster.config.nodes.len();
        let title = format!("Rowlock: {} on this machine", count(nodes, "node"));
        outln!("{}", cluster.paint.bold(&title));
        cluster.start_all()?;
        let started = time::now();
        let reports = cluster.wait_until_serving(true).await?;
        outln!("  all serve after {:.1} s\n", started.elapsed().as_secs_f64());
        cluster.print_table(&reports);
        cluster.print_footprint();
        let mut kept = true;
        if !self.no_demo {
            kept = demo::run(cluster).await?;
        }
        if self.check {
            return Ok(if kept { ExitCode::SUCCESS } else { ExitCode::from(SOFTWARE) });
        }
        cluster.print_hints();
        cluster.supervise().await
    }
}

/// Runs `work` until its end or a signal, then stops the nodes.
async fn until_stopped(
    cluster: &mut Running,
    mut stop: Stop,
    work: impl AsyncFnOnce(&mut Running) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let outcome = tokio::select! {
        outcome = work(cluster) => outcome,
        () = reader_gone() => Err(Failure::reader_gone()),
        signal = stop.signal() => {
            errln!("\n{signal}: stopping the nodes");
            Ok(ExitCode::SUCCESS)
        }
    };
    // A second signal skips the wait for nodes that do not end.
    tokio::select! {
        () = cluster.nodes.stop() => {}
        _ = stop.signal() => {}
    }
    outcome
}

/// Reports a taken port before any node is started: a node could only report the conflict in its log.
async fn free_ports(config: &ClusterConfig, remedy: &str) -> Result<(), Failure> {
    for node in &config.nodes {
        let all = [
            ("client", node.client_addr.as_ref()),
            ("secure_client", node.secure_client_addr.as_ref()),
            ("peer", Some(&node.peer_addr)),
            ("http", Some(&node.http_addr)),
            ("api", node.api_addr.as_ref()),
        ];
        for (kind, addr) in all.into_iter().filter_map(|(kind, addr)| Some((kind, addr?))) {
            if let Err(e) = Listener::bind(addr).await {
                let problem = format!("cannot listen on {addr} ({kind} of node {}): {e}", node.id);
                return Err(Failure::new(UNAVAILABLE, format!("{problem}; {remedy}")));
            }
        }
    }
    Ok(())
}

pub struct PlanOptions<'a> {
    /// Number of nodes; `None`: as many as in the file.
    pub nodes: Option<u16>,
    /// First client port; peers are 100 and HTTP 200 above.
    pub base_port: Option<u16>,
    pub tls: bool,
    /// Absolute path of the folder for everything.
    pub root: &'a Path,
}

/// Distance between the port ranges of clients, peers, HTTP, clients with TLS and locks by HTTP with
/// `--base-port`.
const PORTS_PER_KIND: u16 = 100;

pub fn plan(mut file: ClusterConfig, options: &PlanOptions<'_>) -> Result<ClusterConfig, Failure> {
    file.nodes.retain(|node| !node.learner);
    file.nodes.sort_by_key(|node| node.id);
    let count = options.nodes.map_or(file.nodes.len(), usize::from);
    file.nodes.truncate(count);
    while file.nodes.len() < count {
        let next = after(&file.nodes)?;
        file.nodes.push(next);
    }
    for (index, node) in (0..).zip(&mut file.nodes) {
        if let Some(base) = options.base_port {
            if node.client_addr.is_some() {
                node.client_addr = Some(loopback(base, index)?);
            }
            if node.secure_client_addr.is_some() {
                node.secure_client_addr = Some(loopback(base.saturating_add(3 * PORTS_PER_KIND), index)?);
            }
            node.peer_addr = loopback(base.saturating_add(PORTS_PER_KIND), index)?;
            node.http_addr = loopback(base.saturating_add(2 * PORTS_PER_KIND), index)?;
            if node.api_addr.is_some() {
                node.api_addr = Some(loopback(base.saturating_add(4 * PORTS_PER_KIND), index)?);
            }
            (node.client_listen, node.secure_client_listen, node.peer_listen) = (None, None, None);
        }
        node.data_dir = options.root.join(format!("node-{}", node.id));
    }
    if options.tls {
        folder::encrypt(&mut file, options.root);
    }
    // The nodes read a file in another folder.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    file.tls = file.tls.map(|files| files.map(absolute));
    file.http.token_file = file.http.token_file.as_deref().map(absolute);
    // Parses the text again, to apply every rule of the file to the result.
    let text = file.to_toml();
    ClusterConfig::parse(&text, &options.root.join("cluster.toml")).map_err(|e| Failure::new(CONFIG, e))
}

fn loopback(base: u16, index: u16) -> Result<String, Failure> {
    let port = base.checked_add(index).filter(|_| base > 0);
    let port = port.ok_or_else(|| {
        Failure::new(USAGE, "--base-port leaves no room for all ports; use a number from 1024 to 65000")
    })?;
    Ok(format!("127.0.0.1:{port}"))
}

/// Returns another node on the host of the last node, each port one higher.
fn after(nodes: &[NodeEntry]) -> Result<NodeEntry, Failure> {
    let last = nodes.last().ok_or_else(|| Failure::new(CONFIG, "the cluster's file has no voting node"))?;
    let next = |address: &str| {
        let bumped = address
            .rsplit_once(':')
            .and_then(|(host, port)| Some(format!("{host}:{}", port.parse::<u16>().ok()?.checked_add(1)?)));
        let remedy = "add the node to the cluster's file or use --base-port";
        bumped.ok_or_else(|| Failure::new(USAGE, format!("there is no port after {address}; {remedy}")))
    };
    Ok(NodeEntry {
        id: NodeId(last.id.0 + 1),
        client_addr: last.client_addr.as_deref().map(next).transpose()?,
        secure_client_addr: last.secure_client_addr.as_deref().map(next).transpose()?,
        peer_addr: next(&last.peer_addr)?,
        http_addr: next(&last.http_addr)?,
        api_addr: last.api_addr.as_deref().map(next).transpose()?,
        client_listen: None,
        secure_client_listen: None,
        peer_listen: None,
        data_dir: last.data_dir.clone(),
        learner: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(nodes: Option<u16>, base_port: Option<u16>) -> Result<ClusterConfig, Failure> {
        let file =
            ClusterConfig::parse(include_str!("../../cluster.toml"), Path::new("cluster.toml")).unwrap();
        plan(file, &PlanOptions { nodes, base_port, tls: false, root: Path::new("/r") })
    }

    #[test]
    fn without_flags_the_nodes_of_the_file_use_the_given_folder() {
        let config = planned(None, None).unwrap();
        assert_eq!(config.endpoints(), "127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183");
        assert_eq!(config.nodes[2].data_dir, Path::new("/r/node-3"));
    }

    #[test]
    fn more_nodes_than_the_file_has_follow_on_the_next_ports() {
        let config = planned(Some(5), None).unwrap();
        assert_eq!(config.nodes[4].id, NodeId(5));
        assert_eq!(config.nodes[4].peer_addr, "127.0.0.1:2285");
        assert_eq!(planned(Some(1), None).unwrap().nodes.len(), 1);
    }

    #[test]
    fn base_port_moves_all_listeners() {
        let config = planned(None, Some(7000)).unwrap();
        let node = &config.nodes[1];
        assert_eq!(
            (node.any_client_addr(), node.peer_addr.as_str(), node.http_addr.as_str()),
            ("127.0.0.1:7001", "127.0.0.1:7101", "127.0.0.1:7201")
        );
        assert_eq!(planned(None, Some(65_534)).unwrap_err().code, USAGE);
    }

    #[test]
    fn an_encrypted_cluster_uses_its_client_ports_for_tls_only() {
        let file =
            ClusterConfig::parse(include_str!("../../cluster.toml"), Path::new("cluster.toml")).unwrap();
        let options = PlanOptions { nodes: None, base_port: Some(7000), tls: true, root: Path::new("/r") };
        let config = plan(file, &options).unwrap();
        assert_eq!(config.nodes[1].secure_client_addr.as_deref(), Some("127.0.0.1:7001"));
        assert!(config.nodes.iter().all(|node| node.client_addr.is_none()));
        assert!(config.peer.needs_certificates());
        assert_eq!(config.tls.unwrap().key, Path::new("/r/tls/node-{id}.key"));
    }
}
