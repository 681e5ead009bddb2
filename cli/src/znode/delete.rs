//! `rowlock delete`: removes a znode.

use std::process::ExitCode;

use rowlock_client::Error;
use rowlock_proto::ErrorCode;

use super::refused::{CallKind, FailedAt};
use super::{check_path, condition, tree};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, REFUSED, USAGE};

/// Remove a znode, or with -r a whole tree
#[derive(clap::Args)]
pub struct Delete {
    /// Path of the znode
    path: String,
    /// Only if the znode has this version
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "recursive")]
    version: Option<i32>,
    /// Delete the whole tree below the znode first, one znode at a time
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    cluster: Cluster,
}

impl Delete {
    /// Deletes the znode; prints nothing.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        if self.path == "/" {
            return Err(Failure::new(USAGE, "/: the root cannot be removed"));
        }
        let client = self.cluster.connect().await?;
        let answer = if self.recursive {
            tree::delete(&client, &self.path).await
        } else {
            let deleted = client.delete(&self.path, condition(self.version)).await;
            deleted.map_err(|error| FailedAt { path: self.path.clone(), kind: CallKind::Delete, error })
        };
        let path = &self.path;
        let done = match answer {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(FailedAt { error: Error::Rejected(ErrorCode::NotEmpty), .. }) if !self.recursive => {
                Err(Failure::new(REFUSED, format!("{path}: there are znodes below it; -r removes them, too")))
            }
            Err(e) => Err(e.refused(&client, path).await),
        };
        leave(&client).await;
        done
    }
}
