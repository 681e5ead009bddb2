//! Reader of a live cluster's tree into a spool, parents first.
//!
//! A walk is not a consistent snapshot: concurrent changes may be included or missing. The protocol shows
//! neither containers nor TTLs: such znodes are read as persistent ones. The spool is an unnamed file in the
//! format of ZooKeeper's snapshots: three passes read the tree, and a large tree should not stay in memory.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use rowlock_client::{Acl, Children, Client, Error, ErrorCode, Stat};
use rowlock_env::disk::{Dir, File};
use rowlock_env::rng;
use rowlock_proto::path as paths;
use rustix::fs::{Mode, chmod};

use super::create::Amount;
use super::limits::WALK_IN_FLIGHT;
use super::pairs;
use super::record::{Found, Lifetime, Record, creates};
use super::show::Progress;
use super::snapshot::{Acls, Snapshot, SnapshotError};
use super::trouble::{ImportError, retry};

const CHUNK_BYTES: usize = 256 << 10;

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
            for found in join_all(reads).await {
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
    match pairs::read(client, &path).await {
        Ok(Some(Found { stat, content: Some((data, acl)) })) => {
            Ok(Some(SourceZnode { path, data, stat, acl }))
        }
        Ok(Some(Found { content: None, .. })) => {
            Err(ImportError::SourceRequest(path, Error::Rejected(ErrorCode::NoAuth)))
        }
        Ok(None) => Ok(None),
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
    let creates = i32::try_from(creates(&stat)).unwrap_or(i32::MAX);
    let (acl, version) = (Arc::new(acl), stat.version.0);
    let zxid = stat.czxid.max(stat.mzxid).max(stat.pzxid).0;
    Ok(Record { path, data, acl, kind, version, creates, zxid })
}

/// Writer of znodes, parents first.
struct Spool {
    file: File,
    written: u64,
    buffer: BytesMut,
    indexes: BTreeMap<Arc<Vec<Acl>>, i64>,
}

impl Spool {
    /// Creates an empty spool. Only this process can open the file, which disappears with the process.
    fn new() -> std::io::Result<Spool> {
        let folder: PathBuf = std::env::temp_dir().join(format!("rowlock-import-{:016x}", rng::u64()));
        let folder = Dir::create(&folder)?;
        chmod(folder.path(), Mode::RWXU)?;
        let file = folder.create_new("znodes")?;
        folder.remove_all()?;
        Ok(Spool { file, written: 0, buffer: BytesMut::new(), indexes: BTreeMap::new() })
    }

    fn add(&mut self, record: &Record) -> std::io::Result<()> {
        let next = self.indexes.len() as i64;
        let index = *self.indexes.entry(record.acl.clone()).or_insert(next);
        self.write_path(if record.path == "/" { "" } else { &record.path });
        match &record.data {
            None => self.buffer.put_i32(-1),
            Some(data) => {
                self.write_length(data.len());
                self.buffer.put_slice(data);
            }
        }
        self.buffer.put_i64(index);
        self.buffer.put_i64(record.zxid);
        self.buffer.put_bytes(0, 3 * 8);
        self.buffer.put_i32(record.version);
        self.buffer.put_i32(record.creates);
        self.buffer.put_i32(0);
        self.buffer.put_i64(record.kind.to_owner());
        self.buffer.put_i64(0);
        if self.buffer.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    fn finish(mut self) -> Result<Snapshot, SnapshotError> {
        self.write_path("/");
        self.flush()?;
        let acls: Acls = self.indexes.into_iter().map(|(acl, index)| (index, acl)).collect();
        Snapshot::of_znodes(self.file, acls)
    }

    fn write_path(&mut self, path: &str) {
        self.write_length(path.len());
        self.buffer.put_slice(path.as_bytes());
    }

    fn write_length(&mut self, length: usize) {
        self.buffer.put_i32(i32::try_from(length).expect("the length came in a frame far below 2 GiB"));
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn znodes_come_back_as_they_went_in() {
        let open = Arc::new(Acl::open());
        let record = |path: &str, data: Option<&'static [u8]>, kind| Record {
            path: path.to_owned(),
            data: data.map(Into::into),
            acl: open.clone(),
            kind,
            version: 3,
            creates: 7,
            zxid: 11,
        };
        let all = [
            record("/", None, Lifetime::Persistent),
            record("/a", Some(b""), Lifetime::Container),
            record("/a/b", Some(&[7; 300_000]), Lifetime::Ttl(Duration::from_millis(5))),
            record("/c", Some(b"x"), Lifetime::Ephemeral),
        ];
        let mut spool = Spool::new().unwrap();
        for record in &all {
            spool.add(record).unwrap();
        }
        let snapshot = spool.finish().unwrap();
        for _pass in 0..2 {
            let mut records = snapshot.records();
            for record in &all {
                assert_eq!(records.next().unwrap().as_ref(), Some(record));
            }
            assert!(records.next().unwrap().is_none());
        }
    }
}
