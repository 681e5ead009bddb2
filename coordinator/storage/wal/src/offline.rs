//! Reads a data folder for an inspector, whether its node runs or not: the owner, and the snapshots. The log
//! has [`dump`](crate::log::dump::dump).
//!
//! Takes no lock and changes nothing. A file of a running node may vanish between the list and the read: the
//! caller tries again.

use std::path::Path;

use rowlock_env::disk::Dir;
use rowlock_proto::ClusterId;

use super::SNAPSHOT_DIR;
use super::error::StorageError;
use super::identity::{self, Identity};
use super::snapshot::{SnapshotFile, SnapshotStore};

/// Returns the owner of a data folder, and the cluster's id if the node knows the id.
///
/// # Errors
/// The folder has no readable identity, or one of another build.
pub fn owner(path: &Path) -> Result<(Identity, Option<ClusterId>), StorageError> {
    let dir = Dir::open(path).map_err(StorageError::io("opening", path))?;
    let (identity, claim) = identity::read(&dir)?;
    Ok((identity, claim.cluster))
}

/// Returns the snapshots of a data folder, oldest first. Verifies checksums and decodes no state. Blocks on
/// the disk.
///
/// # Errors
/// A file cannot be read, is damaged, or another build wrote the file.
pub fn snapshots(path: &Path, identity: &Identity) -> Result<Vec<SnapshotFile>, StorageError> {
    let path = path.join(SNAPSHOT_DIR);
    let dir = Dir::open(&path).map_err(StorageError::io("opening", &path))?;
    SnapshotStore::survey(&dir, identity)
}
