//! Snapshot files: the whole applied state at a single log position.
//!
//! `file` has the header's bytes (pure) and an open snapshot, read and sent in pieces; `store` is the folder
//! with the newest snapshot, and a snapshot under construction.
//!
//! Invariant: a file is complete, checked and on disk before it gets its name, and its state has been decoded
//! once; older snapshots are removed only afterwards.

pub mod file;
pub mod store;

pub use file::SnapshotFile;
pub use store::{Incoming, SnapshotStore};
