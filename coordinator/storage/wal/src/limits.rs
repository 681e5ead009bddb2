//! Bounds of the log and of snapshots, with the action at each bound, and their deliberate delays.

use std::time::Duration;

/// Nodes whose incarnations a node records: all members that the cluster ever had. Beyond: refused in the
/// handshake.
pub const KNOWN_NODES_MAX: usize = 1_024;
/// Writes queued for the log's thread. Beyond: Raft waits with its next write.
pub const WAL_QUEUE_MAX: usize = 16_384;
/// Bytes of a snapshot per write to its file.
pub const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;
/// Pause after each write of a snapshot: the log's flushes wait for the data in the disk's queue before them.
/// Limits the writing of a snapshot to 128 MB per second.
pub const SNAPSHOT_PIECE_PAUSE: Duration = Duration::from_millis(2);
/// Bytes that one step cuts off the previous snapshot's file: the log's flushes may wait for the file system,
/// and freeing more room takes longer.
pub const SNAPSHOT_CUT_BYTES: u64 = 4 << 20;
/// Pause after each step of [`SNAPSHOT_CUT_BYTES`].
pub const SNAPSHOT_CUT_PAUSE: Duration = Duration::from_millis(5);
/// Silence of the log before the log records the end of the last flush. Longer than the pause between
/// occasional locks and than the steps of an election: neither waits for the flush of this record.
pub const FLUSH_MARK_DELAY: Duration = Duration::from_secs(1);

const _: () =
    assert!(SNAPSHOT_PIECE_BYTES as u64 <= SNAPSHOT_CUT_BYTES, "the cut of a file is at least a piece");
