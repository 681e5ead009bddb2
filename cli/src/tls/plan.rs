//! Plan of node certificates and their hosts. Pure: touches nothing.

use std::net::IpAddr;

use rowlock_coordinator::config::{ClusterConfig, NodeEntry};

use crate::exit::{Failure, USAGE};

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

    use super::*;

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
