//! `rowlock health`: turns one node's answer to `/readyz` or `/livez` into an exit code, for health checks of
//! containers and for scripts.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use rowlock_coordinator::config::ClusterConfig;
use rowlock_proto::NodeId;

use crate::cluster::Cluster;
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::http_get::{self, TokenOption};
use crate::moment::duration;
use crate::print::outln;
use crate::serve::WhichNode;

/// Exit with 0 if the node is serving clients
#[derive(clap::Args)]
pub struct Health {
    /// Node id in cluster.toml, or from-hostname
    #[arg(long, value_name = "ID", env = "ROWLOCK_NODE")]
    node: Option<WhichNode>,
    /// HTTP address of the node, host:port; https:// before it: use TLS
    #[arg(long, value_name = "ADDR", conflicts_with = "node")]
    http: Option<String>,
    /// Check liveness (`/livez`) instead, which needs no quorum: for supervisors that restart the node
    #[arg(long)]
    live: bool,
    /// Give up after this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    timeout: Duration,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    token: TokenOption,
}

impl Health {
    /// Exits with 0 if the node is healthy, 1 with the reason if not, 69 without an answer.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let (addr, by_tls) = self.addr()?;
        let access = self.token.access(by_tls, &self.cluster.tls, std::slice::from_ref(&addr))?;
        let path = if self.live { "/livez" } else { "/readyz" };
        let answer = http_get::answer(&addr, path, &access, self.timeout).await;
        let answer = answer.map_err(|e| Failure::new(UNAVAILABLE, format!("{addr}: no answer: {e}")))?;
        if answer.status == "200" {
            outln!("{}", answer.body.trim());
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failure::new(REFUSED, format!("{addr}: {}", answer.reason())))
    }

    fn addr(&self) -> Result<(String, bool), Failure> {
        if let Some(addr) = &self.http {
            let bare = addr.trim_start_matches("https://").trim_start_matches("http://");
            return Ok((bare.trim_end_matches('/').to_owned(), addr.starts_with("https://")));
        }
        let Some(file) = self.cluster.file()? else {
            return Err(Failure::new(USAGE, "which node? name it with --http, or with --config and --node"));
        };
        let node = match (self.node, &file.nodes[..]) {
            (Some(which), _) => which.id()?,
            (None, [only]) => only.id.0,
            (None, _) => return Err(Failure::new(USAGE, "which node? use --node ID, or --http ADDR")),
        };
        let addr = http_of(&file, NodeId(node))
            .ok_or_else(|| Failure::new(USAGE, format!("the cluster's file has no node {node}")))?;
        Ok((reachable(addr), file.http.tls))
    }
}

fn http_of(file: &ClusterConfig, id: NodeId) -> Option<&str> {
    file.nodes.iter().find(|node| node.id == id).map(|node| node.http_addr.as_str())
}

/// Replaces an unspecified address by loopback: a node of this machine listens on all its addresses.
fn reachable(addr: &str) -> String {
    let Some((host, port)) = addr.rsplit_once(':') else { return addr.to_owned() };
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => format!("127.0.0.1:{port}"),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[::1]:{port}"),
        _ => addr.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_on_all_addresses_is_reached_on_loopback() {
        assert_eq!(reachable("0.0.0.0:8081"), "127.0.0.1:8081");
        assert_eq!(reachable("[::]:8081"), "[::1]:8081");
        assert_eq!(reachable("10.1.2.3:8081"), "10.1.2.3:8081");
        assert_eq!(reachable("host:8081"), "host:8081");
    }
}
