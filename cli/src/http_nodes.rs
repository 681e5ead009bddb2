//! Which nodes a command asks over HTTP, and how: all of the cluster, unless some are named.

use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::http_get::{TokenOption, Way};

/// Options of commands that ask every node over HTTP.
#[derive(clap::Args)]
pub struct HttpNodes {
    /// HTTP addresses, host:port,host:port [default: those of cluster.toml]. https:// before one: use TLS
    /// for all
    #[arg(long, value_name = "LIST", env = "ROWLOCK_HTTP", value_delimiter = ',')]
    http: Vec<String>,
    #[command(flatten)]
    token: TokenOption,
}

/// The nodes' addresses (`host:port`), and how to ask them.
pub struct Addresses {
    /// In the order of the file, or as they were given.
    pub all: Vec<String>,
    /// By TLS or not, with a token or without.
    pub way: Way,
}

impl HttpNodes {
    /// `None`: only addresses for clients are known. Those that were given may be of another cluster than
    /// that of the cluster.toml that happens to lie here.
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
        let way = self.token.way(by_tls, &cluster.tls, &all)?;
        Ok(Some(Addresses { all, way }))
    }
}
