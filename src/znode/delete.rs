//! `rowlock delete`: removes a znode.

use std::process::ExitCode;

use super::condition;
use crate::cluster::{Cluster, failed, leave};
use crate::exit::Failure;

/// Remove a znode without children
#[derive(clap::Args)]
pub struct Delete {
    /// Path of the znode
    path: String,
    /// Only if the znode has this version
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    version: Option<i32>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Delete {
    /// Prints nothing.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = client.delete(&self.path, condition(self.version)).await;
        leave(&client).await;
        answer.map_err(|e| failed(&self.path, &e))?;
        Ok(ExitCode::SUCCESS)
    }
}
