//! Limits of an import, each with the effect of reaching it.

use std::time::Duration;

/// Bytes per transaction; then the next transaction begins. The outcomes of all transactions in flight, with
/// their paths and stats, stay below the 1 MiB that a node keeps of a session.
pub const BATCH_BYTES: usize = 64 << 10;
/// Operations per transaction; then the next transaction begins.
pub const BATCH_OPS: usize = 500;
/// Largest create (servers accept frames below 1 MiB); the plan refuses a larger znode.
pub const TRANSACTION_BYTES_MAX: usize = 0xfffff - 1_024;
/// Transactions in flight; then the next waits for the oldest.
pub const BATCHES_IN_FLIGHT: usize = 8;
/// Repetitions of a transaction that other clients overtake; then the import fails.
pub const OVERTAKEN_MAX: u32 = 20;
/// Znodes of the target read concurrently, and records of the source read ahead.
pub const READS_IN_FLIGHT: usize = 64;
/// Znodes of a live tree read concurrently; memory may hold this many per level of the tree.
pub const WALK_IN_FLIGHT: usize = 16;
/// Largest data version repeated by `--keep-versions` without a number.
pub const VERSIONS_DEFAULT: &str = "1000";
/// Bytes of the repeated sets of one znode; a znode that needs more loses its version.
pub const VERSION_BYTES_MAX: usize = 512 << 10;
pub const LARGEST: usize = 10;
/// Paths listed per kind of issue; further paths are only counted.
pub const LISTED: usize = 20;
/// Paths named in the command that removes an unfinished import; further paths are only counted.
pub const NAMED: usize = 5;
/// Pause before the retry of a request that the cluster could not serve.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a create's outcome beside its path.
const OUTCOME_BYTES: usize = 100;
const _: () = assert!(BATCHES_IN_FLIGHT * (BATCH_BYTES + BATCH_OPS * OUTCOME_BYTES) < 1 << 20);
