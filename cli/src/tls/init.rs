//! `rowlock tls init`: creates both CAs, and a certificate for every node, from a plan of nodes and hosts.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_env::rng;
use rowlock_tls::Certificate;
use serde_json::json;

use super::folder::{self, CLIENTS, Folder, PEERS, Signer};
use super::{CA_DAYS, DAYS, FolderOptions, Output, date, days, described};
use crate::exit::{Failure, USAGE};
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
        let plan = plan(&options, file.as_ref())?;
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
    let sign = |node: &Node| {
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

/// Host names of a node on this machine.
const THIS_MACHINE: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const DEFAULT_NAME: &str = "rowlock";
const DEFAULT_NODES: u64 = 3;

pub struct PlanOptions<'a> {
    pub cluster: Option<&'a str>,
    pub nodes: Option<u64>,
    /// Hosts of node 1, of node 2, and so on; several hosts of one node are joined by `+`.
    pub hosts: &'a [String],
}

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub cluster: String,
    pub nodes: Vec<Node>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    pub id: u64,
    pub hosts: Vec<String>,
}

/// Returns the plan. Flags take precedence over the cluster's file.
pub fn plan(options: &PlanOptions<'_>, file: Option<&ClusterConfig>) -> Result<Plan, Failure> {
    let name = options.cluster.or(file.map(|file| file.name.as_str()));
    Ok(Plan { cluster: name.unwrap_or(DEFAULT_NAME).to_owned(), nodes: nodes(options, file)? })
}

fn nodes(options: &PlanOptions<'_>, file: Option<&ClusterConfig>) -> Result<Vec<Node>, Failure> {
    let differs = |count: usize, source: &str| match options.nodes {
        Some(nodes) if u64::try_from(count) != Ok(nodes) => {
            let problem = format!("--nodes {nodes}, and {source} has {count}");
            Err(Failure::new(USAGE, format!("{problem}; omit --nodes, or list as many hosts as nodes")))
        }
        _ => Ok(()),
    };
    if !options.hosts.is_empty() {
        differs(options.hosts.len(), "--hosts")?;
        let all = (1..).zip(options.hosts);
        return all.map(|(id, hosts)| Ok(Node { id, hosts: split(hosts)? })).collect();
    }
    if let Some(file) = file {
        differs(file.nodes.len(), "the cluster's file")?;
        return Ok(file.nodes.iter().map(planned_node).collect());
    }
    let count = options.nodes.unwrap_or(DEFAULT_NODES);
    Ok((1..=count).map(|id| Node { id, hosts: THIS_MACHINE.map(str::to_owned).to_vec() }).collect())
}

pub fn split(hosts: &str) -> Result<Vec<String>, Failure> {
    let hosts: Vec<String> = hosts.split('+').map(|host| bare(host).to_owned()).collect();
    if hosts.iter().any(String::is_empty) {
        let problem = "a node without a host among --hosts";
        return Err(Failure::new(USAGE, format!("{problem}; use NAME,NAME,NAME, or NAME+ADDRESS,...")));
    }
    Ok(hosts)
}

/// Removes the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    let host = host.trim();
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

fn planned_node(node: &NodeEntry) -> Node {
    let mut hosts: Vec<String> = Vec::new();
    let client_addrs = node.client_addr.iter().chain(&node.secure_client_addr);
    for address in client_addrs.chain([&node.peer_addr, &node.http_addr]) {
        let host = bare(address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host));
        let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let names = if is_here { THIS_MACHINE.to_vec() } else { vec![host] };
        for name in std::iter::once(host).chain(names) {
            if !name.is_empty() && !hosts.iter().any(|known| known == name) {
                hosts.push(name.to_owned());
            }
        }
    }
    Node { id: node.id.0, hosts }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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

    const FILE: &str = "name = \"orders\"\n[[node]]\nid = 4\nclient = \"db1.example:2181\"\npeer = \
                        \"10.0.0.1:2281\"\nhttp = \"127.0.0.1:8081\"\n[[node]]\nid = 7\nclient = \"[fd00::7]:2181\"\npeer = \
                        \"[fd00::7]:2281\"\n";

    fn planned(nodes: Option<u64>, hosts: &[&str], file: bool) -> Result<Plan, Failure> {
        let file = file.then(|| ClusterConfig::parse(FILE, Path::new("cluster.toml")).unwrap());
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        plan(&PlanOptions { cluster: None, nodes, hosts: &hosts }, file.as_ref())
    }

    fn hosts(plan: &Plan) -> Vec<(u64, String)> {
        plan.nodes.iter().map(|node| (node.id, node.hosts.join(" "))).collect()
    }

    #[test]
    fn without_anything_three_nodes_are_on_this_machine() {
        let plan = planned(None, &[], false).unwrap();
        assert_eq!(plan.cluster, "rowlock");
        assert_eq!((plan.nodes.len(), plan.nodes[2].hosts.join(" ")), (3, THIS_MACHINE.join(" ")));
    }

    #[test]
    fn the_file_gives_the_name_and_every_host_of_a_node() {
        let plan = planned(None, &[], true).unwrap();
        assert_eq!(plan.cluster, "orders");
        let first = "db1.example 10.0.0.1 127.0.0.1 localhost ::1".to_owned();
        let nodes = hosts(&plan);
        assert_eq!(nodes[0], (4, first));
        assert!(nodes[1].0 == 7 && nodes[1].1.starts_with("fd00::7"), "{nodes:?}");
    }

    #[test]
    fn hosts_are_those_of_the_nodes_in_their_order() {
        let plan = planned(None, &["a", "b+10.0.0.2+[::2]"], true).unwrap();
        assert_eq!(
            (plan.cluster.as_str(), hosts(&plan)),
            ("orders", vec![(1, "a".into()), (2, "b 10.0.0.2 ::2".into())])
        );
    }

    #[test]
    fn numbers_that_do_not_agree_are_refused() {
        for refused in [planned(Some(3), &["a", "b"], false), planned(Some(3), &[], true)] {
            let refused = refused.unwrap_err();
            assert!(refused.message.contains("--nodes 3, and") && refused.code == USAGE, "{refused}");
        }
        assert_eq!(planned(None, &["a+"], false).unwrap_err().code, USAGE);
    }
}
