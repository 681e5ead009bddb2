//! The write-ahead log: everything Raft must not forget, in one sequence of records, flushed once per batch.
//!
//! `frame`, `segment`, `scan`, `record` are pure: bytes and decisions. `recover` reads the folder at start,
//! `writer` writes, rotates and recycles segments; `worker` is the thread that drives the writer and tells
//! who waits. `handle` is the log as the rest of the node sees it. `dump` shows it to a person, damaged
//! or not.
//!
//! Layout: `<data>/wal/<sequence number>.wal` and `spare-*`, see `segment`.
//!
//! Invariant: a segment is created only after everything before it is on disk, so only the last one may end
//! torn. Invariant: every segment begins with a checkpoint, so the oldest ones can go as soon as their
//! entries are purged.

pub mod dump;
pub mod frame;
pub mod handle;
pub mod record;
pub mod recover;
pub mod scan;
pub mod segment;
pub mod worker;
pub mod writer;
