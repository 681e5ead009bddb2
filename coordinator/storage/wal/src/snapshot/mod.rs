//! Snapshot files: the whole applied state at one position of the log.
//!
//! `format` is the header's bytes (pure); `file` an open snapshot, which is read and sent in pieces; `store`
//! the folder with the newest one; `incoming` a snapshot that arrives from another node.
//!
//! Invariant: a file is complete, checked and on disk before it gets its name, and its state has been read
//! from it; older ones go only after that.

pub mod file;
pub mod format;
pub mod incoming;
pub mod store;

pub use file::SnapshotFile;
pub use incoming::Incoming;
pub use store::SnapshotStore;
