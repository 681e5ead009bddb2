//! Document of the report on contention.

use serde::{Deserialize, Serialize};

use crate::ids::Zxid;
use crate::lock_event::GapReason;

/// `/v1/contention`: the waiting time of locks, from one node's history and the queues of this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contention {
    /// The newest change that the document includes.
    pub zxid: Zxid,
    /// Beginning of the requested time.
    pub since_ms: i64,
    /// Beginning of the known time; later than `since_ms` if the history begins later or is too long.
    pub from_ms: i64,
    /// End of the time: the report's own, by the clock of the log.
    pub until_ms: i64,
    /// Why the known time begins late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<GapReason>,
    /// Times between `from_ms` and `until_ms` from which records may be missing, the newest first.
    pub gaps: Vec<UnknownTime>,
    /// Time before `from_ms` and in gaps.
    pub unknown_ms: i64,
    /// Waits that began before a gap and have no recorded end. The sums of the document lack these waits.
    pub lost: LostWaits,
    /// Waiting time of all locks.
    pub waited_ms: i64,
    /// Requests of all locks.
    pub requests: u64,
    /// Number of requests that waited.
    pub waits: u64,
    /// Number of locks with waits, including those not shown.
    pub lock_count: u64,
    /// Waiting time of all locks in equal parts of the requested time.
    pub slices: Slices,
    /// Locks with waits, the longest waiting time first.
    pub locks: Vec<LockWaits>,
    /// True if there are more locks than the document shows.
    pub more: bool,
}

/// A part of the time from which a node's history may lack records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownTime {
    /// Time of the last record before the gap that the reader may see.
    pub from_ms: i64,
    /// Time of the last missing record.
    pub to_ms: i64,
    /// Cause of the gap.
    pub reason: GapReason,
    /// Number of missing records of all locks. `None`: unknown.
    pub missing: Option<u64>,
}

/// Number of waits whose ends are in gaps, with bounds of their waiting time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostWaits {
    /// Number of the waits.
    pub waits: u64,
    /// Waiting time up to the gaps.
    pub at_least_ms: i64,
    /// Waiting time up to the ends of the gaps.
    pub at_most_ms: i64,
}

/// Waiting time in equal parts of a time; the first begins at `since_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    /// Length of a part.
    pub step_ms: i64,
    /// Waiting time in each part. `None`: the part ends before the known time.
    pub waited_ms: Vec<Option<i64>>,
}

/// The waits for one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaits {
    /// Path of the lock's znode.
    pub lock: String,
    /// Waiting time of all waiters.
    pub waited_ms: i64,
    /// Requests granted or given up in the time, or waiting at its end.
    pub requests: u64,
    /// Number of requests that waited.
    pub waits: u64,
    /// Waiters that left the queue without the lock.
    pub gave_up: u64,
    /// The longest wait, which may have begun before the time.
    pub longest_ms: i64,
    /// Holders by the waiting time of the others, the longest first.
    pub behind: Vec<WaitedBehind>,
    /// Waiters by their waiting time, the longest first.
    pub waiting: Vec<WaitedBy>,
    /// Pairs of waiter and holder, the longest time first, in a report on one lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<WaitingPair>,
}

/// Waiting time of all waiters behind one holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitedBehind {
    /// The holder; `None` without a holder that the reader may see: a hand-over, or a lock-delay.
    pub holder: Option<String>,
    /// True if a gap of the history hides whether there was a holder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// Waiting time; holders at the same time have equal parts.
    pub waited_ms: i64,
}

/// Waiting time of one waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitedBy {
    /// Label, address or session of the waiter: untrusted text.
    pub waiter: String,
    /// Waiting time of the waiter.
    pub waited_ms: i64,
}

/// Waiting time of one waiter behind one holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingPair {
    /// Label, address or session of the waiter: untrusted text.
    pub waiter: String,
    /// The holder, and the waiting time behind the holder.
    #[serde(flatten)]
    pub behind: WaitedBehind,
}
