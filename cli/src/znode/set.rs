//! `rowlock set`: replaces the data of a znode.

use std::ffi::OsString;
use std::process::ExitCode;

use super::refused::{CallKind, ZnodeCall};
use super::{Output, check_path, condition, data, json_stat, print_json};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;

/// Replace the data of a znode
#[derive(clap::Args)]
pub struct Set {
    /// Path of the znode
    path: String,
    /// New data [default: stdin]; `-` reads stdin
    data: Option<OsString>,
    /// Only if the znode has this version
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    version: Option<i32>,
    /// Output format; simple prints nothing
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Set {
    /// Prints nothing, or the new Stat as JSON.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        let data = data(self.data)?;
        let client = self.cluster.connect().await?;
        let answer = client.set(&self.path, Some(data.into()), condition(self.version)).await;
        let answer = match answer {
            Ok(stat) => Ok(stat),
            Err(e) => Err(ZnodeCall { path: &self.path, kind: CallKind::Set }.refused(&client, &e).await),
        };
        leave(&client).await;
        let stat = answer?;
        if self.output == Output::Json {
            print_json(&json_stat(&stat))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
