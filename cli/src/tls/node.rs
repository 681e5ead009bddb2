//! `rowlock tls node`: creates the certificate of another node.

use std::process::ExitCode;

use serde_json::json;

use super::folder::{self, Folder, PEERS};
use super::{DAYS, FolderOptions, Output, date, days, described, plan};
use crate::exit::{CONFIG, Failure};
use crate::print::outln;
use crate::znode::print_json;

/// Create the certificate of another node
#[derive(clap::Args)]
pub struct Node {
    /// Node id in cluster.toml
    #[arg(value_parser = clap::value_parser!(u64).range(1..=254))]
    id: u64,
    /// Host names and addresses of the node, joined by `+`
    #[arg(long, value_name = "HOSTS")]
    hosts: String,
    /// Cluster name [default: that in the certificates of the other nodes]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Validity period in days
    #[arg(long, value_name = "DAYS", value_parser = days, default_value_t = DAYS)]
    days: i64,
    #[command(flatten)]
    folder: FolderOptions,
}

impl Node {
    /// Creates both files, or none if one of the files exists.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let folder = Folder::open(self.folder.trusted_dir()?)?;
        let stem = folder::node(self.id);
        folder.refuse_taken([stem.as_str()])?;
        let cluster = match &self.cluster {
            Some(name) => name.clone(),
            None => cluster_of(&folder)?,
        };
        let uri = rowlock_tls::node_uri(&cluster, self.id);
        let hosts = plan::split(&self.hosts)?;
        let issued = folder.signer(PEERS)?.sign(&stem, &hosts, Some(&uri), self.days)?;
        folder.keep(&stem, &issued.cert_pem, &issued.key_pem)?;
        if self.folder.output == Output::Json {
            let mut all = described(&issued.certificate);
            all["cert"] = json!(folder.cert(&stem));
            all["key"] = json!(folder.key(&stem));
            print_json(&all)?;
        } else {
            let (cert, key) = (folder.cert(&stem), folder.key(&stem));
            let until = date(issued.certificate.expires_ms);
            outln!(
                "made {} and {} for node {} of {cluster:?}, until {until}",
                cert.display(),
                key.display(),
                self.id
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the cluster name in the certificates of the folder's nodes.
fn cluster_of(folder: &Folder) -> Result<String, Failure> {
    for stem in folder.stems()?.iter().filter(|stem| stem.starts_with("node-")) {
        let read = rowlock_tls::inspect::certificates(&folder.cert(stem));
        let read = read.map_err(|e| Failure::new(CONFIG, e))?;
        let uris = read.into_iter().take(1).flat_map(|certificate| certificate.uris);
        let name = |uri: String| {
            uri.strip_prefix("rowlock://")?.rsplit_once("/node/").map(|(name, _)| name.to_owned())
        };
        if let Some(name) = uris.into_iter().find_map(name) {
            return Ok(name);
        }
    }
    Err(Failure::new(CONFIG, "cannot find the cluster's name: there is no node certificate; use --cluster"))
}
