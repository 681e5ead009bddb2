//! Bounds of Raft, of proposals and of messages between nodes, with the action at each bound.

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
/// Upper end of the bound of [`LOG_MEMORY_BYTES`](rowlock_metrics::memory::LOG_MEMORY_BYTES), unless the last snapshot is larger: then the snapshot's size.
pub const LOG_MEMORY_MAX_BYTES: usize = 256 << 20;
