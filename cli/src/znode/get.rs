//! `rowlock get` and `rowlock stat`: print the data and the metadata of a znode.

use std::io::IsTerminal;
use std::process::ExitCode;

use rowlock_client::Znode;
use rowlock_proto::ErrorCode;
use serde_json::{Value, json};

use super::refused::{CallKind, ZnodeCall};
use super::{Output, check_path, json_data, json_stat, print_json};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;
use crate::print::print;

/// Print the data of a znode
#[derive(clap::Args)]
pub struct Get {
    /// Path of the znode
    path: String,
    /// Output format; simple is exactly the data
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Get {
    /// Writes the unchanged bytes; at a terminal followed by a line end.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        let client = self.cluster.connect().await?;
        let answer = match client.get(&self.path).await {
            Ok(znode) => Ok(znode),
            Err(e) => Err(ZnodeCall { path: &self.path, kind: CallKind::Read }.refused(&client, &e).await),
        };
        leave(&client).await;
        let Znode { data, stat } = answer?;
        match self.output {
            Output::Json => {
                let data = json_data(data.as_deref());
                print_json(&json!({"path": self.path, "data": data, "stat": json_stat(&stat)}))?;
            }
            Output::Simple => {
                let data = data.unwrap_or_default();
                print(&data)?;
                if std::io::stdout().is_terminal() && !data.ends_with(b"\n") {
                    print(b"\n")?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

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
