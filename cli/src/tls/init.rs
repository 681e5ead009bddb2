//! `rowlock tls init`: creates both CAs, and a certificate for every node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_env::rng;
use rowlock_tls::Certificate;
use serde_json::json;

use super::folder::{self, CLIENTS, Folder, PEERS, Signer};
use super::plan::{self, Plan, PlanOptions};
use super::{CA_DAYS, DAYS, FolderOptions, Output, date, days, described};
use crate::exit::Failure;
use crate::found;
use crate::print::print;
use crate::znode::print_json;

/// Create the CAs and node certificates of a new cluster
#[derive(clap::Args)]
pub struct Init {
    /// Number of nodes [default: that of --hosts or cluster.toml, else 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=254))]
    nodes: Option<u64>,
    /// Host names or addresses of nodes 1, 2, ...; join several of one node by `+` [default: those of
    /// cluster.toml, else localhost]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Cluster name [default: that of cluster.toml, else rowlock]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Path of cluster.toml [default: ./cluster.toml if it exists]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Validity of node certificates in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = DAYS)]
    days: i64,
    /// Validity of the CAs in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = CA_DAYS)]
    ca_days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

impl Init {
    /// Creates all files, or none if one of the files exists.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let file = found::cluster_file_if_any(self.config.as_deref())?;
        let options = PlanOptions { cluster: self.cluster.as_deref(), nodes: self.nodes, hosts: &self.hosts };
        let plan = plan::plan(&options, file.as_ref())?;
        let made = make(self.folder.trusted_dir()?, &plan, self.days, self.ca_days)?;
        match self.folder.output {
            Output::Json => {
                let nodes = plan.nodes.iter().zip(&made).map(|(node, certificate)| {
                    let mut all = described(certificate);
                    all["node"] = json!(node.id);
                    all["cert"] = json!(self.folder.dir().join(format!("{}.pem", folder::node(node.id))));
                    all
                });
                let nodes: Vec<_> = nodes.collect();
                print_json(&json!({ "cluster": plan.cluster, "dir": self.folder.dir(), "nodes": nodes }))?;
            }
            Output::Text => print(self.summary(&plan, &made).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn summary(&self, plan: &Plan, made: &[Certificate]) -> String {
        let dir = self.folder.dir().display();
        let mut out = format!("made in {dir}:\n");
        let mut line = |file: &str, description: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {:<34}{description}", format!("{file}.pem, {file}.key"));
        };
        line(PEERS, "CA of the nodes: its key can make a node");
        line(CLIENTS, "CA of the clients: its key can make any client");
        for (node, certificate) in plan.nodes.iter().zip(made) {
            let until = date(certificate.expires_ms);
            let description = format!("node {} at {}, until {until}", node.id, certificate.hosts.join(", "));
            line(&folder::node(node.id), &description);
        }
        let _ = write!(
            out,
            "
cluster.toml of the cluster {:?}, the same on every node:
  [tls]
  cert = \"{dir}/node-{{id}}.pem\"
  key = \"{dir}/node-{{id}}.key\"
  peer_ca = \"{dir}/peers-ca.pem\"
  client_ca = \"{dir}/clients-ca.pem\"

  [peer]
  security = \"mtls\"

and in each [[node]] a port for clients that use TLS, for instance:
  secure_client = \"{}:{SECURE_PORT}\"

Node N needs node-N.pem, node-N.key, peers-ca.pem and clients-ca.pem. The keys of the authorities sign new
certificates: keep them where no node and no client is.

next:
  rowlock tls client NAME   a client's certificate
  rowlock tls check         contents and expiry of the files
  rowlock tls renew         new certificates before the old ones expire
",
            plan.cluster,
            in_address(plan.nodes.first().and_then(|node| node.hosts.first()).map_or("host", String::as_str)),
        );
        out
    }
}

/// Proposed port, unlike ZooKeeper's 2281, which is a node's port in the shipped cluster.toml.
const SECURE_PORT: u16 = 2481;

fn in_address(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Creates the CAs and the certificates of all nodes in a folder; returns the nodes' certificates.
pub fn make(dir: &Path, plan: &Plan, days: i64, ca_days: i64) -> Result<Vec<Certificate>, Failure> {
    // Signs before writing: an impossible certificate name leaves no files. Each CA has a unique name:
    // revocation lists are found by name, and during a replacement nodes trust both CAs.
    let unique = rng::u64() >> 32;
    let authority = |kind: &str| Signer::new(&format!("{kind} of {} {unique:08x}", plan.cluster), ca_days);
    let (peers, clients) = (authority("nodes")?, authority("clients")?);
    let sign = |node: &plan::Node| {
        let uri = rowlock_tls::node_uri(&plan.cluster, node.id);
        let issued = peers.sign(&folder::node(node.id), &node.hosts, Some(&uri), days)?;
        Ok((folder::node(node.id), issued))
    };
    let nodes: Vec<_> = plan.nodes.iter().map(sign).collect::<Result<_, Failure>>()?;
    let folder = Folder::create(dir)?;
    folder.refuse_taken([PEERS, CLIENTS].into_iter().chain(nodes.iter().map(|(stem, _)| stem.as_str())))?;
    peers.keep(&folder, PEERS)?;
    clients.keep(&folder, CLIENTS)?;
    for (stem, issued) in &nodes {
        folder.keep(stem, &issued.cert_pem, &issued.key_pem)?;
    }
    Ok(nodes.into_iter().map(|(_, issued)| issued.certificate).collect())
}

#[cfg(test)]
mod tests {
    use rowlock_coordinator::config::ClusterConfig;

    use super::*;

    #[test]
    fn the_proposed_port_is_free_in_the_shipped_cluster_toml() {
        let with_port = include_str!("../../../cluster.toml")
            .replace(
                "peer = \"127.0.0.1:2281\"",
                &format!("peer = \"127.0.0.1:2281\"\nsecure_client = \"127.0.0.1:{SECURE_PORT}\""),
            )
            .replace("[client]\n", "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n[client]\n");
        let config = ClusterConfig::parse(&with_port, Path::new("cluster.toml")).unwrap();
        assert!(config.nodes[0].secure_client_addr.is_some());
    }
}
