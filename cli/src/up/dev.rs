//! `rowlock dev`: runs one node for tests and laptops, with data in the current folder. Ports are chosen at
//! the first start and kept: the node is a member under its addresses.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::ClusterConfig;
use rowlock_env::net::Listener;
use serde_json::json;

use super::folder::{self, ExistingData, Folder};
use super::running::Nodes;
use super::running::Running;
use super::until_stopped;
use crate::cluster::DEV_FOLDER;
use crate::exit::{CONFIG, Failure, IO, UNAVAILABLE};
use crate::found;
use crate::http_get::HttpAccess;
use crate::log_filter;
use crate::paint::Paint;
use crate::print::{outln, print};
use crate::signals::Stop;
use crate::superuser;
use crate::znode::Output;

/// Preferred ports for clients, nodes and HTTP. The last port is that of locks by HTTP in `cluster.toml`,
/// which the pages of the clients name.
const USUAL_PORTS: [u16; 3] = [2181, 2281, 8481];

/// Longest lease of `rowlock acquire` in milliseconds: an hour.
const LEASE_MAX_MS: u32 = 3_600 * 1_000;

/// Run one node for development, with its data in .rowlock of the current folder
///
/// Free ports are chosen once and kept. Commands in the same folder find the node without options.
#[derive(clap::Args)]
pub struct Dev {
    /// Delete the data of the last run, and choose ports again
    #[arg(long)]
    fresh: bool,
    /// Folder for data, log, cluster.toml and the superuser's credential [default: .rowlock]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Format of the addresses; json is one line, printed when the node serves clients
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Log level of the node
    #[arg(long, value_name = "LEVEL", env = "ROWLOCK_LOG", default_value = "info")]
    log: String,
}

impl Dev {
    /// Runs until SIGINT or SIGTERM.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        log_filter::check(&self.log)?;
        let stop = Stop::listen()?;
        let data = self.data.as_deref().unwrap_or(Path::new(DEV_FOLDER));
        if self.data.is_none() {
            found::check(data, "--data")?;
        }
        let root = std::path::absolute(data)
            .map_err(|e| Failure::new(IO, format!("no absolute path of {}: {e}", data.display())))?;
        let mut config = self.config(&root).await?;
        super::free_ports(
            &config,
            "stop the process that listens there, or start with --fresh, which chooses other ports",
        )
        .await?;
        let existing = if self.fresh { ExistingData::Fresh } else { ExistingData::Keep };
        let folder = Folder::open(&root, &mut config, existing)?;
        folder.hide_from_git();
        let nodes = Nodes::new(folder.config(), self.log.clone());
        let http = HttpAccess::default();
        let mut cluster = Running { config, folder, nodes, cert: None, http, paint: Paint::stdout() };
        until_stopped(&mut cluster, stop, async |cluster| self.serve(cluster).await).await
    }

    async fn serve(&self, cluster: &mut Running) -> Result<ExitCode, Failure> {
        cluster.start_all()?;
        cluster.wait_until_serving(self.output == Output::Simple).await?;
        let (node, config) = (&cluster.config.nodes[0], cluster.folder.config());
        let superuser = config.with_file_name(superuser::FILE);
        let http = format!("http://{}", node.http_addr);
        let document = json!({
            "client": node.any_client_addr(),
            "http": http,
            "console": format!("{http}/ui/"),
            "config": config,
            "superuser": superuser,
        });
        match self.output {
            Output::Json => print(format!("{document}\n").as_bytes())?,
            Output::Simple => {
                outln!("{}", cluster.paint.bold("Rowlock: one node for development, until Ctrl-C"));
                for key in ["client", "http", "console", "config", "superuser"] {
                    outln!("  {key:<10} {}", document[key].as_str().unwrap_or("-"));
                }
                outln!("In this folder: rowlock lock nightly -- ./backup.sh; elsewhere first:");
                outln!("  export ROWLOCK_CONFIG={} ROWLOCK_API={http}", config.display());
            }
        }
        cluster.supervise().await
    }

    /// Loads the configuration of the last run, or creates one with free ports.
    async fn config(&self, root: &Path) -> Result<ClusterConfig, Failure> {
        let former = root.join(folder::CONFIG);
        if !self.fresh && former.exists() {
            return ClusterConfig::load(&former).map_err(|e| Failure::new(CONFIG, e));
        }
        let [client, peer, http] = free_addresses().await?;
        let text = format!(
            "name = \"dev\"\n[session]\nmax_timeout_ms = {LEASE_MAX_MS}\n[limits]\nreserve_bytes = 0\n\
             [http]\napi = true\n[[node]]\nid = 1\nclient = \"{client}\"\n\
             peer = \"{peer}\"\nhttp = \"{http}\"\ndata = \"node-1\"\n"
        );
        ClusterConfig::parse(&text, &former).map_err(|e| Failure::new(CONFIG, e))
    }
}

/// Returns the preferred addresses if all are free, else free ones.
async fn free_addresses() -> Result<[String; 3], Failure> {
    let usual = USUAL_PORTS.map(|port| format!("127.0.0.1:{port}"));
    if bound(&usual).await.is_some() {
        return Ok(usual);
    }
    let [client, peer, http, _] = free_ports_of(1).await?.remove(0);
    Ok([client, peer, http])
}

/// Moves all listeners to free ports of this machine.
pub(super) async fn on_free_ports(config: &mut ClusterConfig) -> Result<(), Failure> {
    let free = free_ports_of(config.nodes.len()).await?;
    for (node, [client, peer, http, api]) in config.nodes.iter_mut().zip(free) {
        for (address, free) in [
            (&mut node.client_addr, client.clone()),
            (&mut node.secure_client_addr, client),
            (&mut node.api_addr, api),
        ] {
            if address.is_some() {
                *address = Some(free);
            }
        }
        (node.peer_addr, node.http_addr) = (peer, http);
        (node.client_listen, node.secure_client_listen, node.peer_listen) = (None, None, None);
    }
    Ok(())
}

/// Returns four different free addresses per node.
async fn free_ports_of(nodes: usize) -> Result<Vec<[String; 4]>, Failure> {
    let any = vec!["127.0.0.1:0".to_owned(); 4 * nodes];
    let found = bound(&any).await.ok_or_else(|| Failure::new(UNAVAILABLE, "127.0.0.1 has no free ports"))?;
    let (chunks, _) = found.as_chunks::<4>();
    Ok(chunks.to_vec())
}

/// Binds all addresses at the same time and returns the resulting ones; `None` if any fails.
async fn bound(wanted: &[String]) -> Option<Vec<String>> {
    let mut listeners = Vec::new();
    for address in wanted {
        listeners.push(Listener::bind(address).await.ok()?);
    }
    Some(listeners.iter().map(|listener| listener.local_addr().to_string()).collect())
}
