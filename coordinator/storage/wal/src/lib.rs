//! Durable storage of a Rowlock node: the write-ahead log with the vote ([`log`]), the snapshots
//! ([`snapshot`]), the owner of the data folder ([`identity`]), and the recorded incarnations of other nodes
//! ([`folder`]).
//!
//! ```text
//! <data>/identity            cluster, node, format version, build, incarnation
//! <data>/acquaintances       recorded incarnations of other nodes
//! <data>/LOCK                held by the running process
//! <data>/run                 whether the last run may have lost acknowledged entries ([`run_mark`])
//! <data>/wal/                segments of the log
//! <data>/snapshots/          the newest snapshot
//! ```
//!
//! # In the flow
//!
//! The crate lies below Raft and above `env::disk`; an adapter in the layer above connects Raft with the log
//! and the snapshots. [`Storage::open`] returns the parts of a folder as [`Opened`]. Framing, scanning and
//! replay are pure; the threads only move bytes.
//!
//! # Guarantees
//!
//! - An acknowledged write survives any crash and any loss of power: the log acknowledges only after the
//!   flush ([`Log::append`], [`Log::save_vote`]). An unflushed write may survive or not.
//! - Recovery finds a prefix of the submitted writes, in their order, and nothing else. Recovery cuts an
//!   unfinished write off the end and reports the cut; an unreadable record below the flushed offset is
//!   damage, and the folder is refused.
//! - After a failed write or flush the log acknowledges nothing more: the opener of the folder receives one
//!   [`DiskFailure`] and stops the node. Only a write without disk space before any flush is retried; all
//!   later writes wait behind this write.
//! - A snapshot is complete, checked and on disk before the file gets its name, and its state has been
//!   decoded once; older snapshots are removed only afterwards.
//! - A folder belongs to a single node of a single cluster, and to a single process at a time. An emptied
//!   folder returns under another incarnation.
//! - Every refusal names the operator's next step ([`StorageError`]).
//!
//! `docs/protocol.md` has the formats with their versions; `docs/decisions/wal-not-sled.md` has the reasons
//! for our own log.
//!
//! # Outside this crate
//!
//! The crate does not depend on openraft: terms, nodes and positions are numbers here ([`entry`]), and
//! commands are bytes. The commit position is a mark from the caller; the leader is unknown here, and other
//! nodes are known only by their incarnations. The crate decodes a replicated state only to verify a
//! snapshot.

pub mod advice;
pub mod entry;
pub mod error;
pub mod folder;
pub mod identity;
pub mod limits;
pub mod log;
pub mod memlog;
pub mod offline;
mod open;
mod recovery_report;
mod reserve;
pub mod run_mark;
pub mod snapshot;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use entry::{Entry, LeaderId, LogId, Membership, Payload, SnapshotMeta, StoredMembership, Vote};
pub use error::{DiskFailure, StorageError, is_of_the_disk};
pub use folder::{Folder, NotRecorded};
pub use identity::{FolderState, Identity};
pub use log::batch::{Callback, Done};
pub use log::record::Checkpoint;
pub use log::worker::{Log, OnFatal};
pub use open::{
    Acknowledge, Begun, Opened, SEGMENT_BYTES, Stopped, Storage, begin_all, begin_with_state, check_release,
    verify,
};
pub use recovery_report::RecoveryReport;
pub use reserve::Reserve;
pub use run_mark::{Memory, RunMark};
pub use snapshot::{Incoming, SnapshotFile, SnapshotStore};
