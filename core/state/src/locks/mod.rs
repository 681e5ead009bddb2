//! The queues of all locks: who holds what, who waits, and what one release changes.
//!
//! A lock is a znode; its contenders are its ephemeral sequential children, whatever client made them, in the
//! order of their creation (czxid, and within one multi the number that the server gave; never the rest of a
//! name). This index stands beside the tree: [`publish`] brings it up to date once a command has been carried
//! out whole, so operations that are taken back never touch it.
//!
//! Invariant: the holders of a lock are the first of its queue, no waiter is before a holder (strict FIFO).
//! Invariant: no waiter that could hold waits: after every command each changed lock has been settled.

mod acquire;
mod alone;
mod ask;
mod check;
mod contender;
mod convert;
mod deadlock;
mod due;
mod index;
mod key;
mod leave;
mod lock;
mod owner;
mod party;
mod publish;
mod view;

pub use ask::{ASK_PAUSE_MS, ASKED_MAX, ASKERS_MAX, AskedHolder, Asker, Deadline, Question};
pub(crate) use contender::{Contender, address_in};
pub(crate) use deadlock::SEARCH_FLOOR;
pub(crate) use index::Locks;
pub(crate) use key::Key;
pub(crate) use lock::Lock;
pub(crate) use party::Room;
pub(crate) use publish::Cause;
pub use view::{ContenderView, LockView};

/// Contenders of one lock; the next acquire is refused with `QuotaExceeded`. Plain creates are not bounded by
/// it. The leader lets fewer in ([`crate::cost::QUEUE_PLACES_MAX`]).
pub const QUEUE_MAX: usize = 100_000;

/// Locks in one acquire, claims in one release; more are refused with `BadArguments`.
pub const PLACES_MAX: usize = 1_024;

/// Bytes of a queue znode's data that are shown to others.
pub const LABEL_MAX: usize = 256;

/// Bytes of a queue znode's path that are shown to others in an answer. The rest is cut off.
pub const PARTY_PATH_MAX: usize = 1_024;

/// Bytes that one answer spends on naming others. Beyond: they are not named. What else an answer holds is
/// the client's own, and not longer than its request.
pub const PARTIES_MAX_BYTES: usize = 64 << 10;

/// The limit of permits that the data of a lock's znode name.
pub(crate) fn limit_in(data: Option<&bytes::Bytes>) -> Option<u32> {
    data.and_then(|data| rowlock_proto::lock::limit_in(data))
}

/// Whether no lock may be there: what is at and below `/zookeeper` is the cluster's own, and a container that
/// acquire made there would stand among quotas.
fn is_reserved(lock: &str) -> bool {
    lock.strip_prefix("/zookeeper").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path of a queue znode.
pub(crate) fn queue_path(lock: &str, name: &str) -> String {
    rowlock_proto::path::join(lock, name)
}
