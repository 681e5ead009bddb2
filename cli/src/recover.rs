//! `rowlock recover`: creates a cluster of one node from the last remaining node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use rowlock_backup::file;
use rowlock_backup::folder::{self, NewCluster, Restored};
use rowlock_backup::survivor::{self, Survivor, SurvivorError};
use rowlock_coordinator::config::{ClusterConfig, NodeEntry};
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_wal::{Identity, StorageError};
use serde_json::json;

use crate::backup::restore::refuse_discovery;
use crate::backup::restore::{grace_text, member, new_id, not_made};
use crate::exit::{DATA_FOLDER, Failure, IO, REFUSED, USAGE};
use crate::found;
use crate::print::{count, print};
use crate::znode::{Output, print_json};

/// Create a cluster of one node from the last node that is left
///
/// Use it when the disks of a majority are gone for good and no backup is newer than the data of one stopped
/// node. Writes that this node had not received are lost. The result is a new cluster, as after `rowlock
/// backup restore`: a new id, larger tokens, no old sessions, and no new ones until all old clients have
/// given up. Nodes of the old cluster are refused if they come back.
///
/// The file must have this node as its only voter; others join later with empty folders as learners.
#[derive(clap::Args)]
pub struct Recover {
    /// cluster.toml of the new cluster [default: cluster.toml]
    #[arg(long, value_name = "FILE", env = "ROWLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Id of the node that is left
    #[arg(long, value_name = "ID")]
    node: u64,
    /// Confirm that no other node has its data or will ever have it again
    #[arg(long)]
    others_are_gone: bool,
    /// Open sessions at once: confirms that no client of the old cluster is left
    #[arg(long)]
    no_grace: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Recover {
    /// Creates the new folder beside the old one, and exchanges both names when the new folder is complete.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = found::cluster_file(self.config.as_deref())?;
        refuse_discovery(&config, found::cluster_path(self.config.as_deref()))?;
        let node = self.only_voter(&config)?;
        if !self.others_are_gone {
            let problem = "the other nodes may know of writes that this one has not: use --others-are-gone if they and their \
                        disks are lost for good";
            return Err(Failure::new(USAGE, problem));
        }
        let (beside, before) = (folder::beside(&node.data_dir), folder::before(&node.data_dir));
        if before.exists() {
            let problem =
                format!("{} exists already, from an earlier recovery; move it away", before.display());
            return Err(Failure::new(DATA_FOLDER, problem));
        }
        let Survivor { machine, last, stopped } =
            survivor::read(&node.data_dir).map_err(|e| unreadable(&e))?;
        if stopped.identity.node != node.id {
            let (dir, found) = (node.data_dir.display(), &stopped.identity);
            return Err(Failure::new(DATA_FOLDER, format!("{dir} is the folder of {found}")));
        }
        let longest = file::longest_timeout_ms(&machine).max(config.session.max_timeout_ms);
        let grace_ms = if self.no_grace { 0 } else { longest };
        let new = NewCluster { id: new_id(), grace_ms };
        let restored = Restored::new(machine, new, time::wall_ms()).map_err(|e| Failure::new(REFUSED, e))?;
        let identity = Identity { cluster: config.name.clone(), node: node.id };
        let voters = BTreeMap::from([(node.id, member(node))]);
        restored.make_folder(&beside, &identity, &voters).map_err(|e| not_made(&e))?;
        drop(stopped);
        let exchanged = folder::exchange(&node.data_dir);
        exchanged.map_err(|e| Failure::new(IO, format!("{}: {e}", node.data_dir.display())))?;
        let (ended, last) = (restored.ended(), last.map_or(0, |last| last.index));
        match self.output {
            Output::Simple => print(
                format!(
                    "new cluster {} ({}) of node {}, from its log up to index {last}\nended: {} with {}\n\
                     the old folder is {}\n{}\n",
                    config.name,
                    new.id,
                    node.id,
                    count(ended.sessions, "session"),
                    count(ended.ephemerals, "ephemeral znode"),
                    before.display(),
                    grace_text(grace_ms),
                )
                .as_bytes(),
            )?,
            Output::Json => print_json(&json!({
                "cluster": config.name,
                "cluster_id": new.id.to_string(),
                "log_index": last,
                "zxid": restored.machine().last_zxid().0,
                "grace_ms": grace_ms,
                "sessions_ended": ended.sessions,
                "folder": node.data_dir,
                "old_folder": before,
            }))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn only_voter<'a>(&self, config: &'a ClusterConfig) -> Result<&'a NodeEntry, Failure> {
        let voters: Vec<&NodeEntry> = config.nodes.iter().filter(|node| !node.learner).collect();
        match voters[..] {
            [only] if only.id == NodeId(self.node) => Ok(only),
            _ => {
                let problem = "the new cluster begins with one voter: omit all further nodes, or mark them with `learner = true`";
                Err(Failure::new(
                    USAGE,
                    format!(
                        "{}: node {} must be the only voter; {problem}",
                        found::cluster_path(self.config.as_deref()).display(),
                        self.node
                    ),
                ))
            }
        }
    }
}

fn unreadable(error: &SurvivorError) -> Failure {
    let code =
        if matches!(error, SurvivorError::Storage(StorageError::Io { .. })) { IO } else { DATA_FOLDER };
    Failure::new(code, error)
}
