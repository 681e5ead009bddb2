//! `rowlock backup`: saves a cluster's state to a file, and creates a new cluster from such a file.

mod export;
mod inspect;
pub mod restore;
mod save;
mod zookeeper;

use std::process::ExitCode;

use rowlock_backup::file::Header;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::moment;
use crate::print::safe_lines;

/// Back up a cluster to a file, and restore a new cluster from one
///
/// A backup holds everything in the tree: protect it like the cluster's secrets. docs/operations.md says what
/// a restore means for locks.
#[derive(clap::Args)]
pub struct Backup {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(clap::Subcommand)]
enum BackupCommand {
    Save(save::Save),
    Inspect(inspect::Inspect),
    Verify(inspect::Verify),
    Restore(restore::Restore),
    Export(export::Export),
}

impl Backup {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            BackupCommand::Save(save) => save.run().await,
            BackupCommand::Inspect(inspect) => inspect.run(),
            BackupCommand::Verify(verify) => verify.run(),
            BackupCommand::Restore(restore) => restore.run(),
            BackupCommand::Export(export) => export.run(),
        }
    }
}

/// Describes a backup by its header, line by line.
fn described(header: &Header) -> String {
    let id = header.cluster_id.as_deref().unwrap_or("none yet");
    let members: Vec<&str> = header.members.lines().filter(|line| line.starts_with("server.")).collect();
    let mut out = format!(
        "cluster   {} ({id})\ntaken at  {}\nzxid      {:#x}, term {}\nholds     {} znodes, {} sessions, {} bytes\n\
         digest    {}\nrelease   {}\n",
        header.cluster,
        moment::rfc3339(header.time_ms),
        header.zxid,
        header.term,
        header.znodes,
        header.sessions,
        header.state_bytes,
        header.digest,
        header.release,
    );
    for (at, member) in members.iter().enumerate() {
        out.push_str(&format!("{}{member}\n", if at == 0 { "members   " } else { "          " }));
    }
    // The text comes from an untrusted file.
    safe_lines(&out)
}

fn document(header: &Header, path: &std::path::Path) -> Value {
    json!({ "file": path, "header": header })
}
