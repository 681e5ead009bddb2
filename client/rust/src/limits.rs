//! Every bound of the client, with what happens when it is reached.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Requests queued or in flight per session; the next call waits for one of them to finish.
pub(crate) const OUTSTANDING_REQUESTS: usize = 4096;

/// Lock attempts, held guards and unfinished removals per session; the next `lock` is refused with
/// [`crate::Error::TooManyLocks`]. A dropped attempt keeps its slot until its znode is gone, so that this
/// also bounds what drops may leave to the session task.
pub(crate) const LOCK_SLOTS: usize = 65_536;

/// Bytes of one request, if the server does not say how many it takes: ZooKeeper's `jute.maxbuffer` by
/// default. A longer one is [`crate::Error::TooLarge`]; servers would close the connection.
pub(crate) const REQUEST_BYTES: usize = rowlock_proto::frame::DEFAULT_MAX_BYTES;

/// Bytes of a credential's scheme and secret together; a longer one is refused where it is given.
pub(crate) const CREDENTIAL_BYTES: usize = 64 << 10;

/// Connections that may break while one request is the first without an answer. Then it is
/// given up ([`crate::Error::GivenUp`]): it may be the cause, and all other requests of the session wait
/// behind it.
pub(crate) const TRIES: u32 = 12;

/// Bytes of one frame from a server; a longer one breaks the connection.
pub(crate) const FRAME_BYTES: usize = 64 << 20;

/// Bytes of paths in one setWatches frame (servers refuse frames of 1 MiB); more paths go into further
/// frames.
pub(crate) const SET_WATCHES_BYTES: usize = 128 << 10;

/// Watched paths that are kept before the unused ones are swept out; then at twice what
/// is left.
pub(crate) const WATCHES_BEFORE_SWEEP: usize = 1024;

/// Pause before each attempt after the first fruitless lap over all servers; doubles per lap up to
/// [`BACKOFF_MAX`].
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two attempts.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Pause before a request that the server refused for the moment (throttled) is sent again.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// How long a session that ended by itself tries to tell the server so.
pub(crate) const FAREWELL: Duration = Duration::from_millis(200);

/// Tagged writes of a session without an answer; the next one waits, and what is behind it. The servers keep
/// this many outcomes and refuse more.
pub(crate) const TAGGED_IN_FLIGHT: u64 = 1024;

/// Queue places that are followed before the unused ones are swept out; then at twice
/// what is left. A place counts in [`LOCK_SLOTS`] as long as a handle keeps it.
pub(crate) const CLAIMS_BEFORE_SWEEP: usize = 1024;

/// After this many answers since the last heartbeat a session asks where the leader is, and whether that has
/// room; at the latest with the next heartbeat.
pub(crate) const CALLS_TO_ASK: u32 = 16;

/// A session with more places in queues stays where it is: moving them would take more than it gives.
pub(crate) const CLAIMS_TO_MOVE_MAX: usize = 8;

/// Claims in one verify request; more go into further requests.
pub(crate) const CLAIMS_PER_VERIFY: usize = 512;

/// Bytes of paths in one verify request (servers refuse frames of 1 MiB); more go into further requests.
pub(crate) const VERIFY_BYTES: usize = 128 << 10;

/// Locks taken by one `lock_all`; more are [`crate::Error::InvalidName`].
pub(crate) const LOCKS_AT_ONCE: usize = 256;

/// The largest count of a [`crate::CountDownLatch`] (its count-downs are children of one znode, which each
/// waiter lists after each of them); a larger one is [`crate::Error::InvalidArgument`].
pub(crate) const LATCH_COUNT: u32 = 1_000;

/// The largest size of a [`crate::DoubleBarrier`] (one transaction checks all its members); a larger one is
/// [`crate::Error::InvalidArgument`].
pub(crate) const DOUBLE_BARRIER_SIZE: u32 = 1_000;

/// How often a change of a [`crate::AtomicCounter`] is tried against competitors; then it is
/// [`crate::Error::Contended`].
pub(crate) const COUNTER_ATTEMPTS: u32 = 64;

/// Pauses between two tries of a change of a counter: the first, doubled up to the last.
pub(crate) const COUNTER_PAUSES: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(100);

/// How long the thread of a blocking client stays for closing the session after its last handle is gone; then
/// the servers expire it.
#[cfg(feature = "blocking")]
pub(crate) const BLOCKING_FAREWELL: Duration = Duration::from_secs(2);
