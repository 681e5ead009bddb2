//! Plan of the cluster for `up`: cluster.toml changed by flags. Pure: touches nothing.

use std::path::Path;

use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_proto::NodeId;

use crate::exit::{CONFIG, Failure, USAGE};

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
        super::tls::encrypt(&mut file, options.root);
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
            ClusterConfig::parse(include_str!("../../../cluster.toml"), Path::new("cluster.toml")).unwrap();
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
            ClusterConfig::parse(include_str!("../../../cluster.toml"), Path::new("cluster.toml")).unwrap();
        let options = PlanOptions { nodes: None, base_port: Some(7000), tls: true, root: Path::new("/r") };
        let config = plan(file, &options).unwrap();
        assert_eq!(config.nodes[1].secure_client_addr.as_deref(), Some("127.0.0.1:7001"));
        assert!(config.nodes.iter().all(|node| node.client_addr.is_none()));
        assert!(config.peer.needs_certificates());
        assert_eq!(config.tls.unwrap().key, Path::new("/r/tls/node-{id}.key"));
    }
}
