//! Nodes that a command queries over HTTP: all nodes of the cluster, unless the command line names some.

use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::http_get::{HttpAccess, TokenOption};

/// Options of commands that query every node over HTTP.
#[derive(clap::Args)]
pub struct HttpNodes {
    /// HTTP addresses, host:port,host:port [default: those of cluster.toml]. https:// before one: use TLS
    /// for all
    #[arg(long, value_name = "LIST", env = "ROWLOCK_HTTP", value_delimiter = ',')]
    http: Vec<String>,
    #[command(flatten)]
    token: TokenOption,
}

/// Addresses of nodes (`host:port`), with TLS and token for all.
pub struct Addresses {
    /// Order of the file or of the command line.
    pub all: Vec<String>,
    pub access: HttpAccess,
}

impl HttpNodes {
    /// Returns the nodes' HTTP addresses, or `None` if only client addresses are known. Explicit client
    /// addresses may belong to another cluster than the cluster.toml in the current folder.
    pub fn find(&self, cluster: &Cluster) -> Result<Option<Addresses>, Failure> {
        let (by_tls, all) = if !self.http.is_empty() {
            let by_tls = self.http.iter().any(|addr| addr.starts_with("https://"));
            let bare =
                |addr: &String| addr.trim_start_matches("https://").trim_start_matches("http://").to_owned();
            (by_tls, self.http.iter().map(bare).collect())
        } else if let Some(file) = cluster.file()? {
            (file.http.tls, file.nodes.iter().map(|node| node.http_addr.clone()).collect())
        } else {
            return Ok(None);
        };
        let all: Vec<String> = all;
        let access = self.token.access(by_tls, &cluster.tls, &all)?;
        Ok(Some(Addresses { all, access }))
    }
}
