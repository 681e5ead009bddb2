//! What a node keeps on disk: the write-ahead log (`wal/`), the snapshots (`snapshot/`), and whose folder it
//! is.
//!
//! Below `raft/`, which hands `LogStore` and `SnapshotStore` to openraft; above `env::disk`. Everything that
//! decides (framing, scanning, replaying) is pure; the threads only move bytes.
//!
//! ```text
//! <data>/identity            cluster, node, format version, incarnation
//! <data>/acquaintances       the incarnations of the nodes that this one has met
//! <data>/LOCK                held by the running process
//! <data>/wal/                segments of the log
//! <data>/snapshots/          the newest snapshot
//! ```

pub mod error;
pub mod folder;
pub mod identity;
pub mod log_store;
pub mod memlog;
mod open;
pub mod snapshot;
pub mod wal;

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use error::{DiskFailure, StorageError};
pub use folder::{Folder, Unmet};
pub use identity::{Identity, Standing};
pub use log_store::LogStore;
pub use open::{Opened, RecoveryReport, SEGMENT_BYTES, Storage, verify};
pub use snapshot::{Incoming, SnapshotFile, SnapshotStore};
pub use wal::worker::OnFatal;

/// Folder of the log's segments.
const WAL_DIR: &str = "wal";
/// Folder of the snapshots.
const SNAPSHOT_DIR: &str = "snapshots";
