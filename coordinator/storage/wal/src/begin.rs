//! Data folders with an initial state, for the members of a restored cluster.

use std::io::{self, Write};
use std::path::Path;

use rowlock_env::disk::Dir;
use rowlock_proto::ClusterId;

use super::entry::{LeaderId, LogId, Membership, SnapshotMeta, StoredMembership};
use super::error::StorageError;
use super::identity::{self, Claim, FolderState, Identity, LogState};
use super::snapshot::SnapshotStore;
use super::{SNAPSHOT_DIR, WAL_DIR};

/// Log position of the restored state: before the first term.
const BEGINNING: LogId = LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 1 };

/// File in each folder of an unfinished restore. A node refuses to start on a marked folder: with only some
/// folders filled, the unfilled voters would form an empty cluster.
const MARK: &str = "restoring";
/// Leftover of an interrupted write of the mark.
const PART_OF_MARK: &str = "restoring.tmp";
const MARK_TEXT: &[u8] =
    b"A restore from a backup has not been finished. Run it again: it replaces this folder.\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// This call filled all folders.
    Filled,
    /// An earlier restore had filled all folders with a state of this cluster; only marks were left to
    /// remove.
    AlreadyFilled(ClusterId),
}

/// Fills the folders of several voters on a single machine. Marks all folders, calls `fill` with the index of
/// each (`fill` uses [`begin_with_state`]), then removes the marks. An interruption at any step leaves
/// folders on which no node starts, or complete folders; the next call finishes the restore. Blocks on the
/// disk.
///
/// # Errors
/// [`StorageError::NotEmpty`] if a folder has content from elsewhere than a restore; all folders are
/// unchanged then.
pub fn begin_all(
    paths: &[&Path],
    fill: impl Fn(usize) -> Result<(), StorageError>,
) -> Result<Begun, StorageError> {
    assert!(!paths.is_empty(), "a restore has folders to make");
    let found = paths.iter().map(|path| inspect(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(FolderContent::Whole(Some(cluster))) =
        found.iter().find(|found| matches!(found, FolderContent::Whole(_)))
        && found.contains(&FolderContent::Marked(Some(*cluster)))
        && found.iter().all(|it| {
            [FolderContent::Whole(Some(*cluster)), FolderContent::Marked(Some(*cluster))].contains(it)
        })
    {
        let marked = paths.iter().zip(&found).filter(|(_, found)| matches!(found, FolderContent::Marked(_)));
        marked.map(|(path, _)| path).try_for_each(|path| unmark(path))?;
        return Ok(Begun::AlreadyFilled(*cluster));
    }
    if let Some((path, _)) =
        paths.iter().zip(&found).find(|(_, found)| matches!(found, FolderContent::Whole(_)))
    {
        return Err(StorageError::NotEmpty(path.to_path_buf()));
    }
    assert!(
        !found.iter().any(|found| matches!(found, FolderContent::Whole(_))),
        "no content is replaced but a restore's"
    );
    paths.iter().try_for_each(|path| mark(path))?;
    (0..paths.len()).try_for_each(fill)?;
    paths.iter().try_for_each(|path| unmark(path))?;
    Ok(Begun::Filled)
}

/// Content of a folder before a restore.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FolderContent {
    Empty,
    /// Marked, with the cluster of the `identity` file if the folder is filled.
    Marked(Option<ClusterId>),
    /// Content without a mark.
    Whole(Option<ClusterId>),
}

fn inspect(path: &Path) -> Result<FolderContent, StorageError> {
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    let names = dir.list().map_err(StorageError::io("listing", path))?;
    let cluster = || identity::read(&dir).ok().and_then(|(_, claim)| claim.cluster);
    Ok(match names.iter().any(|name| name == MARK) {
        true => FolderContent::Marked(cluster()),
        false if names.iter().all(|name| name == PART_OF_MARK) => FolderContent::Empty,
        false => FolderContent::Whole(cluster()),
    })
}

fn mark(path: &Path) -> Result<(), StorageError> {
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    dir.write_atomic(MARK, MARK_TEXT).map_err(StorageError::io("marking", path))
}

fn unmark(path: &Path) -> Result<(), StorageError> {
    let removed = Dir::open(path).and_then(|dir| {
        dir.remove(MARK)?;
        dir.sync()
    });
    removed.map_err(StorageError::io("removing the mark of a restore from", path))
}

pub(super) fn refuse_marked(dir: &Dir) -> Result<(), StorageError> {
    if dir.exists(MARK) { Err(StorageError::HalfRestored(dir.path().to_owned())) } else { Ok(()) }
}

/// Removes the leftovers of an interrupted restore from a marked folder.
fn clear(dir: &Dir) -> Result<(), StorageError> {
    assert!(dir.exists(MARK), "only a restore's content is removed");
    let removed = dir.list().and_then(|names| {
        for name in names.iter().filter(|name| *name != MARK) {
            if [WAL_DIR, SNAPSHOT_DIR].contains(&name.as_str()) {
                dir.sub(name)?.remove_all()?;
            } else {
                dir.remove(name)?;
            }
        }
        dir.sync()
    });
    removed.map_err(StorageError::io("clearing", dir.path()))
}

/// Makes the data folder of a member whose cluster begins with the state from `body`. Every member of
/// `membership` needs a folder with the same state. Blocks on the disk.
///
/// The file `identity` is written last: a start refuses a folder without an identity. In a folder marked by
/// [`begin_all`] the old content is replaced, and the mark stays.
///
/// # Errors
/// [`StorageError::NotEmpty`] if the folder has content and no mark; the folder is unchanged then.
pub fn begin_with_state(
    path: &Path,
    identity: &Identity,
    cluster: ClusterId,
    membership: Membership,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), StorageError> {
    assert_eq!(membership.configs.len(), 1, "a cluster does not begin in the middle of a change");
    assert!(membership.configs[0].contains(&identity.node.0), "{identity} is made a voter");
    assert!(
        membership.configs[0].iter().all(|voter| membership.nodes.contains_key(voter)),
        "every voter has addresses"
    );
    let dir = Dir::create(path).map_err(StorageError::io("creating", path))?;
    if dir.exists(MARK) {
        clear(&dir)?;
    } else if !dir.list().map_err(StorageError::io("listing", path))?.is_empty() {
        return Err(StorageError::NotEmpty(path.to_owned()));
    }
    let wal = dir.sub(WAL_DIR).map_err(StorageError::io("creating the log's folder in", path))?;
    let snapshots =
        dir.sub(SNAPSHOT_DIR).map_err(StorageError::io("creating the snapshots' folder in", path))?;
    for dir in [&dir, &wal, &snapshots] {
        let private = dir.make_private();
        private.map_err(|source| StorageError::Exposed { path: dir.path().to_owned(), source })?;
    }
    let last_membership = StoredMembership { log_id: Some(BEGINNING), membership };
    let meta = SnapshotMeta { last_log_id: Some(BEGINNING), last_membership };
    let (store, _) = SnapshotStore::open(snapshots, identity.clone(), None)?;
    let written = store.write(meta, body, |written| written.state().map(drop))?;
    assert_eq!(written.meta().last_log_id, Some(BEGINNING), "the snapshot is where the log begins");
    dir.sync().map_err(StorageError::io("flushing", path))?;
    let (incarnation, state) = (identity::new_incarnation(), FolderState::Member);
    let claim = Claim { log: LogState::New, incarnation, state, cluster: Some(cluster), version: None };
    identity::write(&dir, identity, &claim)
}
