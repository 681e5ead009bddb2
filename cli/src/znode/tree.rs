//! `rowlock ls` and `rowlock delete`, and operations on several znodes: missing parents, and a whole tree.
//! Not atomic: other clients may see a part of the change, and an interrupted command leaves a part.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;

use futures_util::future::join_all;
use rowlock_client::{Client, Error};
use rowlock_proto::acl::Acl;
use rowlock_proto::{CreateMode, ErrorCode};
use serde_json::json;

use super::refused::{CallKind, FailedAt};
use super::{Output, check_path, condition, print_json, tree};
use crate::cluster::{Cluster, leave};
use crate::exit::{Failure, REFUSED, USAGE};
use crate::print::{print, safe_lines};

/// Concurrent deletes, which take effect in the order of sending.
const DELETES_IN_FLIGHT: usize = 64;
/// Passes over the tree, to catch znodes created meanwhile by other clients.
const PASSES: u32 = 4;

/// Creates the missing parents of `path`, without data.
pub async fn create_parents(client: &Client, path: &str) -> Result<(), FailedAt> {
    for (end, _) in path.match_indices('/').skip(1) {
        let parent = &path[..end];
        let made = client.create(parent, None, CreateMode::Persistent, Acl::open()).await;
        match made {
            Ok(_) | Err(Error::Rejected(ErrorCode::NodeExists)) => {}
            Err(error) => return Err(FailedAt { path: parent.to_owned(), kind: CallKind::Create, error }),
        }
    }
    Ok(())
}

/// Deletes the znode and everything below, children first.
pub(super) async fn delete(client: &Client, path: &str) -> Result<(), FailedAt> {
    for _ in 0..PASSES {
        match delete_once(client, path).await {
            Err(FailedAt { error: Error::Rejected(ErrorCode::NotEmpty), .. }) => {}
            ended => return ended,
        }
    }
    Err(not_deleted(path, Error::Rejected(ErrorCode::NotEmpty)))
}

async fn delete_once(client: &Client, path: &str) -> Result<(), FailedAt> {
    // Every path follows its parent's path.
    let mut found = tree(client, path).await?;
    found.retain(|below| below != path);
    found.reverse();
    for batch in found.chunks(DELETES_IN_FLIGHT) {
        let deleted = join_all(batch.iter().map(|path| client.delete(path, None))).await;
        for (path, deleted) in batch.iter().zip(deleted) {
            match deleted {
                Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => {}
                Err(e) => return Err(not_deleted(path, e)),
            }
        }
    }
    client.delete(path, None).await.map_err(|e| not_deleted(path, e))
}

fn not_deleted(path: &str, error: Error) -> FailedAt {
    FailedAt { path: path.to_owned(), kind: CallKind::Delete, error }
}

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
