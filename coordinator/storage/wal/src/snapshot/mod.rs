//! Snapshot files: the whole applied state at a single log position.
//!
//! `format` is the header's bytes (pure); `file` is an open snapshot, read and sent in pieces; `store` is the
//! folder with the newest snapshot; `incoming` is a snapshot under construction.
//!
//! Invariant: a file is complete, checked and on disk before it gets its name, and its state has been decoded
//! once; older snapshots are removed only afterwards.

pub mod file;
pub mod format;
pub mod incoming;
pub mod store;

pub use file::SnapshotFile;
pub use incoming::Incoming;
pub use store::SnapshotStore;
