//! `rowlock ls`: lists names of children.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;

use rowlock_client::{Client, Error};
use rowlock_proto::ErrorCode;
use serde_json::json;

use super::refused::{CallKind, FailedAt};
use super::{Output, check_path, print_json};
use crate::cluster::{Cluster, leave};
use crate::exit::Failure;
use crate::print::{print, safe_lines};

/// List the children of a znode
#[derive(clap::Args)]
pub struct Ls {
    /// Path of the znode
    #[arg(default_value = "/")]
    path: String,
    /// List the whole tree below the znode, as paths
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

impl Ls {
    /// Prints one name per line, sorted.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        check_path(&self.path)?;
        let client = self.cluster.connect().await?;
        let listed =
            if self.recursive { tree(&client, &self.path).await } else { names(&client, &self.path).await };
        let listed = match listed {
            Ok(listed) => Ok(listed),
            Err(e) => Err(e.refused(&client, &self.path).await),
        };
        leave(&client).await;
        let listed = listed?;
        match self.output {
            Output::Json => print_json(&json!(listed))?,
            Output::Simple => {
                // Names have no control characters; scripts get unchanged names.
                let names: String = listed.iter().map(|name| format!("{name}\n")).collect();
                let is_terminal = std::io::stdout().is_terminal();
                print(if is_terminal { safe_lines(&names) } else { names }.as_bytes())?
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn names(client: &Client, path: &str) -> Result<Vec<String>, FailedAt> {
    let failed = |error| FailedAt { path: path.to_owned(), kind: CallKind::Read, error };
    let mut names = client.get_children(path).await.map_err(failed)?.names;
    names.sort_unstable();
    Ok(names)
}

/// Returns the paths of all znodes at and below `path`, without znodes deleted meanwhile.
pub(super) async fn tree(client: &Client, path: &str) -> Result<Vec<String>, FailedAt> {
    let mut found = vec![path.to_owned()];
    let mut ahead: VecDeque<String> = child_paths(path, names(client, path).await?);
    while let Some(path) = ahead.pop_front() {
        match names(client, &path).await {
            Ok(names) => ahead.extend(child_paths(&path, names)),
            Err(FailedAt { error: Error::Rejected(ErrorCode::NoNode), .. }) => continue,
            Err(e) => return Err(e),
        }
        found.push(path);
    }
    found.sort_unstable();
    Ok(found)
}

fn child_paths(parent: &str, names: Vec<String>) -> VecDeque<String> {
    let parent = parent.trim_end_matches('/');
    names.into_iter().map(|name| format!("{parent}/{name}")).collect()
}
