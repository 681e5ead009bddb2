//! Bounds of the lock history, with the action at each bound.

use std::time::Duration;

/// Lock events queued for the history's thread. Beyond: dropped and counted, and the history shows a gap.
pub const HISTORY_QUEUE_MAX_RECORDS: usize = 65_536;
/// Bytes of these events. Beyond: the same. One log entry may exceed both bounds.
pub const HISTORY_QUEUE_MAX_BYTES: usize = 16 << 20;
/// Bytes of queued events above which the history's thread starts at once. Below: the thread first lets
/// events collect.
pub const HISTORY_PRESSING_BYTES: usize = 1 << 20;
/// Number of queued events above which the history's thread starts at once.
pub const HISTORY_PRESSING_RECORDS: usize = HISTORY_QUEUE_MAX_RECORDS / 4;
/// Time for which the history's thread lets events collect.
pub const HISTORY_DELAY_MAX: Duration = Duration::from_millis(100);
/// Queries, and notices about snapshots, queued for the history's thread. Beyond: they fail.
pub const HISTORY_QUEUE_MAX_JOBS: usize = 65_536;
/// Free bytes on the disk below which the history records nothing: the log needs the rest.
pub const HISTORY_FREE_MIN_BYTES: u64 = 256 << 20;
/// Pause before the next use of the history's files after a failure: queries fail, and events are lost.
pub const HISTORY_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Time limit of a query of the history. Beyond: the query fails.
pub const HISTORY_READ_MAX: Duration = Duration::from_secs(5);
/// Time for the history to write its buffers when a node stops.
pub const HISTORY_CLOSE_MAX: Duration = Duration::from_secs(2);
