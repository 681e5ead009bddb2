//! `rowlock stat`: prints the metadata of a znode.

use std::process::ExitCode;

use rowlock_proto::ErrorCode;
use serde_json::Value;

use super::refused::{CallKind, ZnodeCall};
use super::{Output, check_path, json_stat, print_json};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;
use crate::print::print;

/// Print the versions, zxids and times of a znode
#[derive(clap::Args)]
pub struct Stat {
    /// Path of the znode
    path: String,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Stat {
    /// Prints `name = value` lines, or one JSON object.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        let client = self.cluster.connect().await?;
        let absent = rowlock_client::Error::Rejected(ErrorCode::NoNode);
        let answer = match client.exists(&self.path).await.and_then(|stat| stat.ok_or(absent)) {
            Ok(stat) => Ok(stat),
            Err(e) => Err(ZnodeCall { path: &self.path, kind: CallKind::Read }.refused(&client, &e).await),
        };
        leave(&client).await;
        let stat = json_stat(&answer?);
        match self.output {
            Output::Json => print_json(&stat)?,
            Output::Simple => print(lines(&stat).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats the Stat, with zxids and sessions in hex like ZooKeeper's tools.
fn lines(stat: &Value) -> String {
    let Value::Object(fields) = stat else { return String::new() };
    let mut out = String::new();
    for (name, value) in fields {
        let hex = name.ends_with("zxid") || name == "ephemeral_owner";
        let value = match value.as_i64() {
            Some(number) if hex => format!("{number:#x}"),
            _ => value.to_string(),
        };
        out.push_str(&format!("{name} = {value}\n"));
    }
    out
}
