//! Every limit of an import, and what happens when it is reached.

use std::time::Duration;

/// Bytes of one transaction; then the next begins.
pub const BATCH_BYTES: usize = 256 << 10;
/// Operations of one transaction; then the next begins.
pub const BATCH_OPS: usize = 1_000;
/// A znode whose create takes more does not fit into a transaction (servers take frames below 1 MiB): refused
/// up front.
pub const TRANSACTION_BYTES_MAX: usize = 0xfffff - 1_024;
/// Transactions on their way; then the next waits for the first of them.
pub const BATCHES_IN_FLIGHT: usize = 8;
pub const READS_IN_FLIGHT: usize = 64;
/// Znodes of a live tree that are read at once; this many may be in memory for every level of the tree.
pub const WALK_IN_FLIGHT: usize = 16;
/// Largest data version that `--keep-versions` without a number repeats.
pub const VERSIONS_DEFAULT: &str = "1000";
/// Bytes of the repeated sets of one znode; versions beyond are not kept.
pub const VERSION_BYTES_MAX: usize = 512 << 10;
/// Largest znodes that are listed.
pub const LARGEST: usize = 10;
/// Paths listed of each kind of trouble; more are only counted.
pub const LISTED: usize = 20;
/// Records of a file after which others get a turn: the session must not starve.
pub const RECORDS_PER_TURN: usize = 1_000;
/// Pause before a request is repeated that the cluster could not serve for the moment.
pub const PAUSE: Duration = Duration::from_millis(50);
/// How long an undo waits for a dead import's marker to go: a little longer than the longest session timeout
/// that ZooKeeper grants by default.
pub const MARKER_WAIT: Duration = Duration::from_secs(45);
