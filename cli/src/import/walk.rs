//! Reader of a live cluster's tree into a spool, parents first.
//!
//! A walk is not a consistent snapshot: concurrent changes may be included or missing. The protocol shows
//! neither containers nor TTLs: such znodes are read as persistent ones.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_client::{Acl, Children, Client, Error, ErrorCode, Stat, Znode};
use rowlock_proto::path as paths;

use super::limits::WALK_IN_FLIGHT;
use super::record::{Lifetime, Record};
use super::retry::{all, retry};
use super::show::Progress;
use super::snapshot::Snapshot;
use super::spool::Spool;
use super::trouble::ImportError;
use super::window::Amount;

/// Znode whose children are being read.
struct Level {
    path: String,
    /// Names of unread children, the next name last.
    names: Vec<String>,
    /// Children read but not yet visited.
    ready: VecDeque<SourceZnode>,
}

struct SourceZnode {
    path: String,
    data: Option<Bytes>,
    stat: Stat,
    acl: Vec<Acl>,
}

/// Reads everything below the client's root except /zookeeper.
pub async fn walk(client: &Client, progress: &mut Progress) -> Result<Snapshot, ImportError> {
    let mut spool = Spool::new().map_err(|e| ImportError::Source(e.into()))?;
    retry(|| client.sync("/")).await.map_err(|e| ImportError::SourceRequest("/".to_owned(), e))?;
    let root = read(client, "/".to_owned()).await?;
    let root =
        root.ok_or_else(|| ImportError::Request("/".to_owned(), Error::Rejected(ErrorCode::NoNode)))?;
    let mut amount = Amount::default();
    let mut levels = Vec::new();
    let mut next = Some(root);
    loop {
        if let Some(found) = next.take() {
            amount.znodes += 1;
            amount.bytes += found.data.as_ref().map_or(0, |data| data.len() as u64);
            progress.show(amount);
            let (path, children) = (found.path.clone(), found.stat.num_children);
            spool.add(&record(found)?).map_err(|e| ImportError::Source(e.into()))?;
            if children > 0 {
                levels.push(Level { names: names(client, &path).await?, path, ready: VecDeque::new() });
            }
        }
        let Some(level) = levels.last_mut() else { break };
        if level.ready.is_empty() && !level.names.is_empty() {
            let some = level.names.split_off(level.names.len().saturating_sub(WALK_IN_FLIGHT));
            let reads = some.iter().rev().map(|name| read(client, paths::join(&level.path, name)));
            for found in all(reads).await {
                level.ready.extend(found?);
            }
        }
        next = level.ready.pop_front();
        if next.is_none() && level.names.is_empty() {
            levels.pop();
        }
    }
    Ok(spool.finish()?)
}

/// Returns the names of children in reverse order; none if the znode was deleted meanwhile.
async fn names(client: &Client, path: &str) -> Result<Vec<String>, ImportError> {
    match retry(|| client.get_children(path)).await {
        Ok(Children { mut names, .. }) => {
            names.iter().try_for_each(|name| check_name(path, name))?;
            names.retain(|name| path != "/" || name != "zookeeper");
            names.sort_unstable_by(|a, b| b.cmp(a));
            Ok(names)
        }
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(Vec::new()),
        Err(e) => Err(ImportError::SourceRequest(path.to_owned(), e)),
    }
}

/// Refuses a name that is no child's name, and a tree that is too deep.
fn check_name(path: &str, name: &str) -> Result<(), ImportError> {
    let refused =
        |why: String| Err(ImportError::BadName { path: path.to_owned(), name: name.to_owned(), why });
    if name.contains('/') || name.is_empty() {
        return refused("a name has at least one character and no slash".to_owned());
    }
    let child = paths::join(path, name);
    match paths::validate(&child) {
        Err(e) => refused(e.to_string()),
        Ok(()) if paths::levels(&child) > paths::MAX_LEVELS => {
            refused(format!("the path has more than {} levels", paths::MAX_LEVELS))
        }
        Ok(()) if child.len() > paths::MAX_BYTES => {
            refused(format!("the path has more than {} bytes", paths::MAX_BYTES))
        }
        Ok(()) => Ok(()),
    }
}

/// Reads a znode; `None` if deleted meanwhile.
async fn read(client: &Client, path: String) -> Result<Option<SourceZnode>, ImportError> {
    let both = async {
        let Znode { data, stat } = retry(|| client.get(&path)).await?;
        let acl = retry(|| client.get_acl(&path)).await?.acl;
        Ok((data, stat, acl))
    };
    match both.await {
        Ok((data, stat, acl)) => Ok(Some(SourceZnode { path, data, stat, acl })),
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
        Err(e) => Err(ImportError::SourceRequest(path, e)),
    }
}

fn record(found: SourceZnode) -> Result<Record, ImportError> {
    let SourceZnode { path, data, stat, acl } = found;
    if acl.iter().any(|entry| entry.id.scheme == "digest" && entry.id.id.ends_with(":x")) {
        // Without ADMIN the digests are hidden and would be lost.
        return Err(ImportError::SourceRequest(path, Error::Rejected(ErrorCode::NoAuth)));
    }
    let kind = if stat.ephemeral_owner.0 == 0 { Lifetime::Persistent } else { Lifetime::Ephemeral };
    // The wire has the number of changes of the children: twice the creates, less the existing children
    // (DataNode.copyStat).
    let creates = (i64::from(stat.cversion.0) + i64::from(stat.num_children)) / 2;
    let creates = i32::try_from(creates).unwrap_or(i32::MAX);
    let (acl, version) = (Arc::new(acl), stat.version.0);
    let zxid = stat.czxid.max(stat.mzxid).max(stat.pzxid).0;
    Ok(Record { path, data, acl, kind, version, creates, zxid })
}
