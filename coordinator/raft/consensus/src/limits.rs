//! Bounds of Raft, of proposals and of messages between nodes, with the action at each bound.
//!
//! The first table has every deliberate delay of a command: the delayed work, its purpose, and the longest
//! delay.
//!
//! A delay makes the work of many clients cheaper: a log entry, a flush or a frame serves more clients. No
//! delay is part of a promise, and none is needed for correctness. `docs/decisions/speed.md` has the gain of
//! each.
//!
//! | delay | delayed work | waits for | where |
//! |---|---|---|---|
//! | [`IN_FLIGHT_DELAY_MAX`] | the next log entry | a larger entry in flight | `batching/mod.rs` |
//! | [`COALESCE_DELAY_MAX`] | acquires that only join queues | more commands | `batching/selection.rs` |
//! | [`COMMIT_NOTIFY_DELAY_MAX`] | a commit, no clients | the next entries | `raft/append_pipeline.rs` |
//! | `wal::limits::FLUSH_MARK_DELAY` | the mark after the last flush | more records | `wal/src/log` |
//!
//! The second table has the pauses before the retry of failed work: the first pause, doubled up to the last
//! (`core/env/src/backoff.rs`).
//!
//! | pauses | after a failed | where |
//! |---|---|---|
//! | `transport::limits::DIAL_PAUSES` | attempt to reach another node | `transport/src/link.rs` |
//! | `transport::limits::DIAL_REFUSED_PAUSES` | handshake that another refuses | `transport/src/link.rs` |
//! | [`SNAPSHOT_PAUSES`] | attempt to write a snapshot | `raft/compaction.rs` |

use std::ops::RangeInclusive;
use std::time::Duration;

use rowlock_transport::limits::PEER_SMALL_FRAME_MAX_BYTES;

/// Commands in a log entry.
pub const BATCH_MAX_COMMANDS: usize = 512;
/// Bytes of the commands in one log entry (a single larger command still passes).
pub const BATCH_MAX_BYTES: usize = 1 << 20;
/// Time or accounted work of one turn of apply, except for a single entry above this bound
/// (`rowlock_state::ENTRY_STEPS_MAX`). Beyond: apply yields to other tasks of the thread.
pub const APPLY_SLICE: Duration = Duration::from_millis(1);
/// Log entries proposed and not committed. Beyond: the next entry waits, so batches grow.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// Largest step by which the term of a message from the own cluster may exceed this node's term. Beyond: the
/// node refuses the message, since a term never decreases, and after the largest term there is no leader.
pub const TERM_AHEAD_MAX: u64 = 1 << 32;
/// Size of one chunk of a snapshot for another node.
pub const PEER_SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;
/// Time for a follower to check and install a snapshot, per MiB, beyond the time for one chunk.
pub const PEER_SNAPSHOT_INSTALL_PER_MIB: Duration = Duration::from_millis(20);
/// Silence of a follower during replication. Beyond: the leader restarts the replication.
pub const PEER_APPEND_IDLE_MAX: Duration = Duration::from_secs(1);
/// Keepalives of this node's clients that wait for the leader. Beyond: no reply.
pub const KEEPALIVES_WAITING_MAX: usize = 65_536;
/// Disconnects of this node's clients that wait for the leader. Beyond: these sessions keep their whole
/// timeout.
pub const DISCONNECTS_WAITING_MAX: usize = 32_768;
// All waiting entries share one frame: a session id takes at most 9 bytes, and a disconnect 24.
const _: () = assert!(KEEPALIVES_WAITING_MAX * 9 < PEER_SMALL_FRAME_MAX_BYTES);
const _: () = assert!(DISCONNECTS_WAITING_MAX * 24 < PEER_SMALL_FRAME_MAX_BYTES);
/// Disconnects of sessions still unknown to the leader. Beyond: the leader drops the disconnect of the lowest
/// session, which then keeps its whole timeout.
pub const DISCONNECTS_EARLY_MAX: usize = 1_024;
/// Bytes of entries loaded into memory by a replication read (a single larger entry still passes).
pub const REPLICATION_READ_MAX_BYTES: usize = 4 << 20;
/// Upper end of the bound of [`LOG_MEMORY_BYTES`](rowlock_metrics::memory::LOG_MEMORY_BYTES), unless the last
/// snapshot is larger: then the snapshot's size.
pub const LOG_MEMORY_MAX_BYTES: usize = 256 << 20;

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
pub const COMMIT_NOTIFY_DELAY_MAX: Duration = Duration::from_millis(50);
/// Pauses after a failed snapshot: time for the disk to recover.
pub const SNAPSHOT_PAUSES: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(300);

const _: () = assert!(REPLICATION_READ_MAX_BYTES > BATCH_MAX_BYTES, "a follower gets an entry of full size");
const _: () =
    assert!(LOG_MEMORY_MAX_BYTES > BATCHES_IN_FLIGHT_MAX * BATCH_MAX_BYTES, "the window is in memory");
const _: () = assert!(FEW_COMMANDS < BATCH_MAX_COMMANDS, "a full entry does not wait for more commands");
