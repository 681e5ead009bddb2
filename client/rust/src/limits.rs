//! Every bound of the client, with the overflow action.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Requests queued or in flight per session; the next call waits until a request finishes.
pub(crate) const OUTSTANDING_REQUESTS: usize = 4096;

/// Lock attempts, held guards and unfinished removals per session; the next `lock` fails with
/// [`crate::Error::TooManyLocks`]. A dropped attempt keeps the slot until the znode is gone, which also
/// bounds the work that drops leave to the session task.
pub(crate) const LOCK_SLOTS: usize = 65_536;

/// Names for metrics of a session; further names count as `other`.
pub(crate) const METRICS_NAMES: usize = 100;

/// Bytes of a request, unless the server announces another limit: ZooKeeper's `jute.maxbuffer` by default. A
/// longer request fails with [`crate::Error::TooLarge`], since servers would close the connection.
pub(crate) const REQUEST_BYTES: usize = rowlock_proto::frame::DEFAULT_MAX_BYTES;

/// Bytes of a credential's scheme and secret together; the client refuses a longer credential.
pub(crate) const CREDENTIAL_BYTES: usize = 64 << 10;

/// Connections that may break while a request is the oldest without an answer. The client then gives the
/// request up ([`crate::Error::GivenUp`]): the request may be the cause, and all other requests of the
/// session wait behind.
pub(crate) const TRIES: u32 = 12;

/// Bytes of a frame from a server; a longer frame breaks the connection.
pub(crate) const FRAME_BYTES: usize = 64 << 20;

/// Bytes of paths in a setWatches frame (servers refuse frames of 1 MiB); more paths go into further frames.
pub(crate) const SET_WATCHES_BYTES: usize = 128 << 10;

/// Watched paths before the first sweep of unused paths; the next sweep comes at twice the remaining number.
pub(crate) const WATCHES_BEFORE_SWEEP: usize = 1024;

/// Pause before each attempt after the first fruitless lap over all servers; doubles per lap up to
/// [`BACKOFF_MAX`].
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two attempts.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Pause before resending a request that the server throttled.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Time limit for sending the server a close at the end of a session.
pub(crate) const FAREWELL: Duration = Duration::from_millis(200);

/// Tagged writes of a session without an answer; the next write and all later requests wait. The servers keep
/// this number of outcomes and refuse more.
pub(crate) const TAGGED_IN_FLIGHT: u64 = 1024;

/// Followed queue positions before the first sweep of unused positions; the next sweep comes at twice the
/// remaining number. A position counts in [`LOCK_SLOTS`] as long as a handle keeps the position.
pub(crate) const CLAIMS_BEFORE_SWEEP: usize = 1024;

/// Answers since the last heartbeat after which a busy session asks for the leader and the leader's room, at
/// the latest with the next heartbeat.
pub(crate) const CALLS_TO_ASK: u32 = 16;

/// Queue positions of a session that may move to the leader; moving more positions costs more than the move
/// gains.
pub(crate) const CLAIMS_TO_MOVE_MAX: usize = 8;

/// Claims in a verify request; more go into further requests.
pub(crate) const CLAIMS_PER_VERIFY: usize = 512;

/// Bytes of paths in a verify request (servers refuse frames of 1 MiB); more go into further requests.
pub(crate) const VERIFY_BYTES: usize = 128 << 10;

/// Locks in a `lock_all`; more are [`crate::Error::InvalidName`].
pub(crate) const LOCKS_AT_ONCE: usize = 256;

/// Largest count of a [`crate::CountDownLatch`]; a larger count is [`crate::Error::InvalidArgument`].
/// Count-downs are children of the latch's znode, and each waiter lists the children after every count-down.
pub(crate) const LATCH_COUNT: u32 = 1_000;

/// Largest size of a [`crate::DoubleBarrier`]; a larger size is [`crate::Error::InvalidArgument`]. A single
/// transaction checks all members.
pub(crate) const DOUBLE_BARRIER_SIZE: u32 = 1_000;

/// Attempts to change a [`crate::AtomicCounter`] against competitors before [`crate::Error::Contended`].
pub(crate) const COUNTER_ATTEMPTS: u32 = 64;

/// Pauses between two tries of a change of a counter: the first, doubled up to the last.
pub(crate) const COUNTER_PAUSES: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(100);

/// Time that the thread of a blocking client has to close the session after the drop of the last handle;
/// afterwards the servers expire the session.
#[cfg(feature = "blocking")]
pub(crate) const BLOCKING_FAREWELL: Duration = Duration::from_secs(2);
