//! `rowlock get`: prints the data of a znode.

use std::io::IsTerminal;
use std::process::ExitCode;

use rowlock_client::Znode;
use serde_json::json;

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
