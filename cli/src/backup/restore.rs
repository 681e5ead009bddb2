//! `rowlock backup restore`: creates the data folders of a new cluster from a backup while no node runs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use rowlock_backup::file;
use rowlock_backup::folder::{self, Begun, Member, NewCluster, Restored};
use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_env::{rng, time};
use rowlock_proto::{ClusterId, NodeId};
use rowlock_wal::{Identity, StorageError};
use serde_json::json;

use super::{open, refused};
use crate::exit::{CONFIG, DATA_FOLDER, Failure, IO, REFUSED, USAGE};
use crate::found;
use crate::moment;
use crate::print::{count, print};
use crate::znode::{Output, print_json};

/// Create the data folders of a new cluster from a backup
///
/// The new cluster has a new id, so nodes and sessions of the old one are refused. Fencing tokens continue
/// above all tokens of the old cluster. Sessions, ephemeral znodes and locks of the backup end. The new
/// cluster opens no session for the longest session timeout, so that all old holders have given up by then.
///
/// If the old cluster still runs, nothing stops its clients but fencing tokens: stop it first.
///
/// Every voter of cluster.toml needs a folder from the same backup with the same id. Learners join by
/// themselves with empty folders.
#[derive(clap::Args)]
pub struct Restore {
    /// Path of the backup file
    file: PathBuf,
    /// cluster.toml of the new cluster [default: cluster.toml]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Create the folder of this node only, on its own machine
    #[arg(long, value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    node: Option<u64>,
    /// Create the folders of all voters on this machine
    #[arg(long)]
    all: bool,
    /// Cluster id and time that the first `restore` printed; required for every further node
    #[arg(long, value_name = "ID@MS")]
    cluster_id: Option<Founding>,
    /// Open sessions at once: confirms that no client of the old cluster is left
    #[arg(long)]
    no_grace: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Refuses a file with discovery: each node would become a cluster of the nodes in its own file.
pub fn refuse_discovery(config: &ClusterConfig, file: &Path) -> Result<(), Failure> {
    if config.discovery.is_none() {
        return Ok(());
    }
    let problem =
        "has [cluster] and does not list all nodes: use a file that lists every [[node]] without [cluster]";
    Err(Failure::new(CONFIG, format!("{}: it {problem}", file.display())))
}

impl Restore {
    /// Loads the file of the new cluster, and returns its path.
    fn cluster(&self) -> Result<(ClusterConfig, &Path), Failure> {
        let file = found::cluster_path(self.config.as_deref());
        let config = found::cluster_file(self.config.as_deref())?;
        refuse_discovery(&config, file)?;
        Ok((config, file))
    }

    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let (config, file) = self.cluster()?;
        let voters: Vec<&NodeEntry> = config.nodes.iter().filter(|node| !node.learner).collect();
        let chosen: Vec<&NodeEntry> =
            voters.iter().copied().filter(|node| self.node.is_none_or(|id| node.id == NodeId(id))).collect();
        if chosen.is_empty() {
            let problem = format!("{} has no voter {}", file.display(), self.node.unwrap_or_default());
            return Err(Failure::new(USAGE, problem));
        }
        let (header, machine) = file::read(open(&self.file)?).map_err(|e| refused(&self.file, &e))?;
        let founding = self.cluster_id.unwrap_or_else(Founding::now);
        let Founding { id, at_ms } = founding;
        if header.id() == Some(id) {
            let problem = "--cluster-id is the id of the old cluster: leave it out for the first node";
            return Err(Failure::new(USAGE, problem));
        }
        let longest = config.session.max_timeout_ms.max(header.longest_timeout_ms);
        let grace_ms = if self.no_grace { 0 } else { longest };
        let restored = Restored::new(machine, NewCluster { id, grace_ms }, at_ms)
            .map_err(|e| Failure::new(REFUSED, e))?;
        let members: BTreeMap<NodeId, Member> = voters.iter().map(|node| (node.id, member(node))).collect();
        let identity = |node: &NodeEntry| Identity { cluster: config.name.clone(), node: node.id };
        let folders: Vec<_> = chosen.iter().map(|node| (node.data_dir.as_path(), identity(node))).collect();
        let made = folder::make_folders(&restored, &folders, &members).map_err(|e| not_made(&e))?;
        if let Begun::AlreadyFilled(id) = made {
            return self.report_earlier(&config.name, id);
        }
        match self.output {
            Output::Simple => {
                let ended = restored.ended();
                let mut out = format!(
                    "new cluster {} ({id}) of {}\nended: {} with {}\nnext zxid {:#x}\n",
                    config.name,
                    count(voters.len(), "voter"),
                    count(ended.sessions, "session"),
                    count(ended.ephemerals, "ephemeral znode"),
                    restored.machine().last_zxid().0 + 1,
                );
                for node in &chosen {
                    // Writing to a String cannot fail.
                    let _ = writeln!(out, "made the folder of node {}: {}", node.id, node.data_dir.display());
                }
                if chosen.len() < voters.len() {
                    let _ = writeln!(
                        out,
                        "on the other machines: rowlock backup restore FILE --node N --cluster-id {founding}"
                    );
                }
                let _ = writeln!(out, "{}", grace_text(grace_ms));
                print(out.as_bytes())?;
            }
            Output::Json => {
                let folders: Vec<_> =
                    chosen.iter().map(|node| json!({ "node": node.id, "folder": node.data_dir })).collect();
                print_json(&json!({
                    "cluster": config.name,
                    "cluster_id": id.to_string(),
                    "founding": founding.to_string(),
                    "zxid": restored.machine().last_zxid().0,
                    "grace_ms": grace_ms,
                    "sessions_ended": restored.ended().sessions,
                    "folders": folders,
                }))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Restore {
    /// Reports folders completed by an earlier command that was interrupted afterwards.
    fn report_earlier(&self, cluster: &str, id: ClusterId) -> Result<ExitCode, Failure> {
        let text = format!(
            "new cluster {cluster} ({id}): an earlier restore had made all folders and was interrupted; they are complete now\n"
        );
        match self.output {
            Output::Simple => print(text.as_bytes())?,
            Output::Json => print_json(&json!({ "cluster": cluster, "cluster_id": id.to_string() }))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Common parameters of all voters of a restored cluster beside the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Founding {
    id: ClusterId,
    /// Time of the first restore, milliseconds since 1970.
    at_ms: i64,
}

impl Founding {
    fn now() -> Self {
        Founding { id: new_id(), at_ms: time::wall_ms() }
    }
}

impl fmt::Display for Founding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.at_ms)
    }
}

impl FromStr for Founding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(id, ms)| Some((id.parse().ok()?, ms.parse().ok()?)));
        let (id, at_ms) = parts.ok_or("use the value printed by the first `restore`, with @ and the time")?;
        Ok(Founding { id, at_ms })
    }
}

/// Describes the time at which sessions are opened.
pub fn grace_text(grace_ms: u32) -> String {
    if grace_ms == 0 {
        return "sessions are opened at once: clients of the old cluster must be gone".to_owned();
    }
    let span = moment::span(grace_ms.into());
    format!(
        "sessions are opened {span} after the first leader is elected; --no-grace if no old client is left"
    )
}

pub fn new_id() -> ClusterId {
    ClusterId(u128::from(rng::u64()) << 64 | u128::from(rng::u64()))
}

/// Returns a voter as listed in the cluster's file.
pub fn member(node: &NodeEntry) -> Member {
    Member { peer_addr: node.peer_addr.clone(), client_addr: node.any_client_addr().to_owned() }
}

pub fn not_made(error: &StorageError) -> Failure {
    let code = if matches!(error, StorageError::Io { .. }) { IO } else { DATA_FOLDER };
    Failure::new(code, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_founding_parses_and_an_id_alone_does_not() {
        let founding = Founding { id: ClusterId(0xb62a), at_ms: 1_795_181_663_219 };
        assert_eq!(founding.to_string().parse(), Ok(founding));
        for wrong in ["", "@", &ClusterId(7).to_string(), "x@1", &format!("{}@", ClusterId(7))] {
            assert!(wrong.parse::<Founding>().is_err(), "{wrong}");
        }
    }
}
