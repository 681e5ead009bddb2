//! Every deliberate delay of a command, in one table: the delayed work, its purpose, and the longest delay.
//!
//! A delay makes the work of many clients cheaper: a log entry, a flush or a frame serves more clients. No
//! delay is part of a promise, and none is needed for correctness. `docs/decisions/speed.md` has the gain of
//! each.
//!
//! | delay | delayed work | waits for | where |
//! |---|---|---|---|
//! | [`IN_FLIGHT_DELAY_MAX`] | the next log entry | a larger entry in flight | `batching/mod.rs` |
//! | [`COALESCE_DELAY_MAX`] | acquires that only join queues | more commands | `batching/coalesce.rs` |
//! | [`COMMIT_NOTIFY_DELAY_MAX`] | a commit, no clients | the next entries | `raft/commit_notify.rs` |
//! | `wal::limits::FLUSH_MARK_DELAY` | the mark after the last flush | more records | `wal/src/log/worker.rs` |
//!
//! The second table has the pauses before the retry of failed work: the first pause, doubled up to the last
//! (`core/env/src/backoff.rs`).
//!
//! | pauses | after a failed | where |
//! |---|---|---|
//! | `transport::limits::DIAL_PAUSES` | attempt to reach another node | `transport/src/dial.rs` |
//! | `transport::limits::DIAL_REFUSED_PAUSES` | handshake that another node refuses | `transport/src/dial.rs` |
//! | [`SNAPSHOT_PAUSES`] | attempt to write a snapshot | `raft/compaction.rs` |

use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest wait of the next entry for the entry in flight: members may be far away, or a disk slow.
pub const IN_FLIGHT_DELAY_MAX: Duration = Duration::from_millis(10);
/// Number of commands in flight below which the next entry does not wait: there are few clients, and a second
/// entry delays none of them. A lock handover is two commands at almost the same moment: the next holder's
/// release must not wait for the previous holder's new queue position.
pub const FEW_COMMANDS: usize = 4;
/// Longest wait for other commands of commands that only join queues. No client gets a lock by these commands
/// alone, and the release that frees their lock ends the wait. At a handover the previous holder comes back
/// first: its new queue position and the next holder's release become one entry instead of two.
pub const COALESCE_DELAY_MAX: Duration = Duration::from_millis(2);
/// Longest delay of a commit notice to a follower without clients. Beyond: the leader sends the notice even
/// without other messages.
pub const COMMIT_NOTIFY_DELAY_MAX: Duration = Duration::from_millis(5);
/// Pauses after a failed snapshot: time for the disk to recover.
pub const SNAPSHOT_PAUSES: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);
