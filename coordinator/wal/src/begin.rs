//! A data folder that begins with a state: of a member of a cluster that is restored.

use std::io::{self, Write};
use std::path::Path;

use rowlock_env::disk::Dir;
use rowlock_proto::ClusterId;

use super::entry::{LeaderId, LogId, Membership, SnapshotMeta, StoredMembership};
use super::error::StorageError;
use super::identity::{self, Claim, FolderState, Identity, LogState};
use super::snapshot::SnapshotStore;
use super::{SNAPSHOT_DIR, WAL_DIR};

/// Where the log of such a cluster begins: before its first term, behind what the state holds.
const BEGINNING: LogId = LogId { leader_id: LeaderId { term: 0, node_id: 0 }, index: 1 };

/// Makes the data folder of one member of a cluster that begins with the state which `body` writes. Every
/// member of `membership` needs a folder with the same state. Blocks on the disk.
///
/// The file `identity` is written last: a folder whose making was interrupted is refused.
///
/// # Errors
/// [`StorageError::NotEmpty`] if the folder has content; that is not touched.
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
    if !dir.list().map_err(StorageError::io("listing", path))?.is_empty() {
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
