//! What a Rowlock node keeps on disk: the write-ahead log with the vote ([`log`]), the snapshots
//! ([`snapshot`]), whose folder it is ([`identity`]), and by which incarnations the node knows others
//! ([`folder`]).
//!
//! ```text
//! <data>/identity            cluster, node, format version, build, incarnation
//! <data>/acquaintances       the incarnations of the nodes that this one knows
//! <data>/LOCK                held by the running process
//! <data>/wal/                segments of the log
//! <data>/snapshots/          the newest snapshot
//! ```
//!
//! # In the flow
//!
//! Below Raft, which is handed the log and the snapshots by an adapter above; above `env::disk`.
//! [`Storage::open`] gives all of a folder as [`Opened`]. Everything that decides (framing, scanning,
//! replaying) is pure; the threads only move bytes.
//!
//! # What it promises
//!
//! - What was reported as done is there after any crash and any loss of power: nothing is reported before
//!   the flush ([`Log::append`], [`Log::save_vote`]). What was never flushed may be there or not.
//! - What is found is a beginning of what was asked for, in that order, and nothing else. An unfinished
//!   write at the end is cut off and said so; a record that had been flushed and cannot be read is damage,
//!   and the folder is refused.
//! - After a failed write or flush nothing is acknowledged any more: the opener of the folder hears of it
//!   once ([`DiskFailure`]) and stops the node. Nothing is tried again but a write that finds no room before
//!   anything was flushed: it waits, with all that comes behind it.
//! - A snapshot is complete, checked and on disk before it gets its name, and its state has been read from
//!   it; older ones go only after that.
//! - A folder is of one node of one cluster, and of one process at a time. One that was emptied comes back
//!   as another one.
//! - Every refusal says what a person must do ([`StorageError`]).
//!
//! The formats are in `docs/protocol.md`, with their versions; the reasons for a log of our own in
//! `docs/decisions/wal-not-sled.md`.
//!
//! # What it does not know
//!
//! It does not know openraft: terms, nodes and positions are numbers here ([`entry`]), and commands are
//! bytes. It does not know when something is committed, but for a mark that it is given; nor who leads, nor
//! any other node beyond its incarnation. Of the replicated state it knows only how to read one from a
//! snapshot, to be sure that it can be.

mod begin;
pub mod entry;
pub mod error;
pub mod folder;
pub mod identity;
mod layout;
pub mod log;
pub mod memlog;
mod open;
mod reserve;
pub mod snapshot;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use begin::{Begun, begin_all, begin_with_state};
pub use entry::{Entry, LeaderId, LogId, Membership, Payload, SnapshotMeta, StoredMembership, Vote};
pub use error::{DiskFailure, StorageError, is_of_the_disk};
pub use folder::{Folder, NotRecorded};
pub use identity::{FolderState, Identity};
pub use log::handle::Log;
pub use log::record::Checkpoint;
pub use log::worker::{Callback, Done, OnFatal};
pub use open::{Opened, RecoveryReport, SEGMENT_BYTES, Stopped, Storage, check_release, verify};
pub use reserve::Reserve;
pub use snapshot::{Incoming, SnapshotFile, SnapshotStore};

/// Folder of the log's segments.
const WAL_DIR: &str = "wal";
const SNAPSHOT_DIR: &str = "snapshots";
