//! Write-ahead log: Raft's durable data in a single sequence of records, with a flush per batch.
//!
//! `segment` and `record` are pure: bytes and decisions. `recover` scans the folder at start; `writer`
//! writes, rotates and recycles segments; `worker` is the thread above the writer and notifies the waiters.
//! Its `Log` is the log's interface for the rest of the node.
//!
//! Layout: `<data>/wal/<sequence number>.wal` and `spare-*`, see `segment`.
//!
//! Invariant: a segment is created only after everything before it is on disk, so only the last segment may
//! end torn. Invariant: every segment begins with a checkpoint, so the oldest segments can be recycled once
//! their entries are purged.

pub mod batch;
pub mod record;
pub mod recover;
pub mod segment;
pub mod worker;
pub mod writer;
