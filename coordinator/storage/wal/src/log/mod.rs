//! Write-ahead log: Raft's durable data in a single sequence of records, with a flush per batch.
//!
//! `frame`, `segment`, `scan` and `record` are pure: bytes and decisions. `recover` reads the folder at
//! start; `writer` writes, rotates and recycles segments; `worker` is the thread above the writer and
//! notifies the waiters. `handle` is the log's interface for the rest of the node. `dump` prints the log for
//! an operator, damaged or not.
//!
//! Layout: `<data>/wal/<sequence number>.wal` and `spare-*`, see `segment`.
//!
//! Invariant: a segment is created only after everything before it is on disk, so only the last segment may
//! end torn. Invariant: every segment begins with a checkpoint, so the oldest segments can be recycled once
//! their entries are purged.

pub mod dump;
pub mod frame;
pub mod handle;
pub mod record;
pub mod recover;
pub mod scan;
pub mod segment;
pub mod worker;
pub mod writer;
