//! Reads the tree of a live cluster into a spool, parents first.
//!
//! A walk is not a consistent snapshot: it may or may not contain changes that are made while it runs. The
//! protocol shows neither containers nor TTLs, so such znodes are read as persistent ones.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use rowlock_client::{Acl, Children, Client, Error, ErrorCode, Stat, Znode};
use rowlock_proto::path as paths;

use super::limits::WALK_IN_FLIGHT;
use super::record::{Lifetime, Record};
use super::retry::{all, insist};
use super::show::Progress;
use super::snapshot::Snapshot;
use super::spool::Spool;
use super::trouble::Trouble;
use super::window::Amount;

/// A znode whose children are being read.
struct Level {
    path: String,
    /// Names of children not read yet, the next one last.
    names: Vec<String>,
    /// Children that were read and are still to be visited.
    ready: VecDeque<SourceZnode>,
}

struct SourceZnode {
    path: String,
    data: Option<Bytes>,
    stat: Stat,
    acl: Vec<Acl>,
}

/// Reads everything below the client's root but /zookeeper.
pub async fn walk(client: &Client, progress: &mut Progress) -> Result<Snapshot, Trouble> {
    let mut spool = Spool::new().map_err(|e| Trouble::Source(e.into()))?;
    insist(|| client.sync("/")).await.map_err(|e| Trouble::SourceRequest("/".to_owned(), e))?;
    let root = read(client, "/".to_owned()).await?;
    let root = root.ok_or_else(|| Trouble::Request("/".to_owned(), Error::Rejected(ErrorCode::NoNode)))?;
    let mut amount = Amount::default();
    let mut levels = Vec::new();
    let mut next = Some(root);
    loop {
        if let Some(found) = next.take() {
            amount.znodes += 1;
            amount.bytes += found.data.as_ref().map_or(0, |data| data.len() as u64);
            progress.show(amount);
            let (path, children) = (found.path.clone(), found.stat.num_children);
            spool.add(&record(found)?).map_err(|e| Trouble::Source(e.into()))?;
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

/// Names of children in reverse order; none, if the znode has gone meanwhile.
async fn names(client: &Client, path: &str) -> Result<Vec<String>, Trouble> {
    match insist(|| client.get_children(path)).await {
        Ok(Children { mut names, .. }) => {
            names.iter().try_for_each(|name| check_name(path, name))?;
            names.retain(|name| path != "/" || name != "zookeeper");
            names.sort_unstable_by(|a, b| b.cmp(a));
            Ok(names)
        }
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(Vec::new()),
        Err(e) => Err(Trouble::SourceRequest(path.to_owned(), e)),
    }
}

/// Refuses a name that would lead elsewhere than to a child, and a tree without end.
fn check_name(path: &str, name: &str) -> Result<(), Trouble> {
    let refused = |why: String| Err(Trouble::BadName { path: path.to_owned(), name: name.to_owned(), why });
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

/// One znode; `None`, if it has gone meanwhile.
async fn read(client: &Client, path: String) -> Result<Option<SourceZnode>, Trouble> {
    let both = async {
        let Znode { data, stat } = insist(|| client.get(&path)).await?;
        let acl = insist(|| client.get_acl(&path)).await?.acl;
        Ok((data, stat, acl))
    };
    match both.await {
        Ok((data, stat, acl)) => Ok(Some(SourceZnode { path, data, stat, acl })),
        Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
        Err(e) => Err(Trouble::SourceRequest(path, e)),
    }
}

fn record(found: SourceZnode) -> Result<Record, Trouble> {
    let SourceZnode { path, data, stat, acl } = found;
    if acl.iter().any(|entry| entry.id.scheme == "digest" && entry.id.id.ends_with(":x")) {
        // Without ADMIN the digests are hidden, and would be lost.
        return Err(Trouble::SourceRequest(path, Error::Rejected(ErrorCode::NoAuth)));
    }
    let kind = if stat.ephemeral_owner.0 == 0 { Lifetime::Persistent } else { Lifetime::Ephemeral };
    // The wire has the changes of children: twice the creates, less those that are left (DataNode.copyStat).
    let creates = (i64::from(stat.cversion.0) + i64::from(stat.num_children)) / 2;
    let creates = i32::try_from(creates).unwrap_or(i32::MAX);
    let (acl, version) = (Arc::new(acl), stat.version.0);
    let zxid = stat.czxid.max(stat.mzxid).max(stat.pzxid).0;
    Ok(Record { path, data, acl, kind, version, creates, zxid })
}
