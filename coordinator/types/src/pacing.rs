//! Every deliberate delay on the way of a command, in one table: what waits, for what, and how long at most.
//!
//! A delay makes the work of many clients cheaper: a log entry, a flush or a frame serves more of them. None
//! is part of a promise, and none is needed for correctness. What each has bought stands in
//! `docs/decisions/speed.md`.
//!
//! | delay | what waits | for what | where |
//! |---|---|---|---|
//! | [`IN_FLIGHT_DELAY_MAX`] | the next log entry | a larger entry in flight | `batching/mod.rs` |
//! | [`COALESCE_DELAY_MAX`] | acquires that only join queues | more commands | `batching/coalesce.rs` |
//! | [`COMMIT_NOTIFY_DELAY_MAX`] | a commit, no clients | the next entries | `raft/commit_notify.rs` |
//! | [`FLUSH_MARK_DELAY`] | the mark after the last flush | more records | `wal/src/log/worker.rs` |

//! And the pauses before work that has failed is tried again: the first, doubled up to the last
//! (`core/env/src/backoff.rs`).
//!
//! | pauses | after a failed | where |
//! |---|---|---|
//! | [`DIAL_PAUSES`] | attempt to reach another node | `transport/src/dial.rs` |
//! | [`DIAL_REFUSED_PAUSES`] | handshake that another node refuses | `transport/src/dial.rs` |
//! | [`SNAPSHOT_PAUSES`] | attempt to write a snapshot | `raft/compaction.rs` |

use std::ops::RangeInclusive;
use std::time::Duration;

/// The next entry waits for the one in flight at most this long. Members may be far away, or a disk slow.
pub const IN_FLIGHT_DELAY_MAX: Duration = Duration::from_millis(10);
/// With fewer commands in flight than this the next entry does not wait: there are few clients, and a second
/// entry delays none of them. (A lock that changes hands is two commands at almost the same moment: the next
/// holder's release must not wait for the former holder's new place.)
pub const FEW_COMMANDS: usize = 4;
/// Commands that only join queues wait at most this long for other commands. No client gets a lock by them
/// alone, and the release that frees their lock comes the same way. (When a lock changes hands, the former
/// holder is back first: its new place and the next holder's release become one entry instead of two.)
pub const COALESCE_DELAY_MAX: Duration = Duration::from_millis(2);
/// How long a follower without clients may not hear what is committed. Beyond: it is told, even if nothing
/// else is to be said.
pub const COMMIT_NOTIFY_DELAY_MAX: Duration = Duration::from_millis(5);
/// A log to which nothing was written for this long gets the record that says that its last flush is done.
/// Longer than the time between locks that are taken now and then and than the steps of an election, so that
/// none of them waits for the flush of this record.
pub const FLUSH_MARK_DELAY: Duration = Duration::from_secs(1);

/// A node that comes back is reached soon.
pub const DIAL_PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(250);
/// A refusal stays until a person has changed something; frequent attempts only fill the other node's log.
pub const DIAL_REFUSED_PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(5);
/// A disk that fails has time to recover.
pub const SNAPSHOT_PAUSES: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);
