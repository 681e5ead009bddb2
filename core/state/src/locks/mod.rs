//! The queues of all locks: holders, waiters, and the effects of each release.
//!
//! A lock is a znode. Its contenders are its ephemeral sequential children, made by any client, in the order
//! of their creation (czxid, and within one multi the number assigned by the server; never the rest of a
//! name). This index lies beside the tree: [`publish`] updates the index after a whole command, so reverted
//! operations never touch the index.
//!
//! Invariant: the holders of a lock are the first of its queue; no waiter is in front of a holder (strict
//! FIFO). Invariant: no waiter waits that could hold: after every command `grant_ready` has run for each
//! changed lock.

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
pub use view::{ContenderView, LockView, Wish};

/// Limit of contenders of one lock. Acquires beyond get `QuotaExceeded`; plain creates have no limit. The
/// leader's limit is lower ([`crate::cost::QUEUE_PLACES_MAX`]).
pub const QUEUE_MAX: usize = 100_000;

/// Limit of locks in one acquire, and of claims in one release. Beyond: `BadArguments`.
pub const PLACES_MAX: usize = 1_024;

/// Limit of a queue znode's data shown to other clients, in bytes.
pub const LABEL_MAX: usize = 256;

/// Limit of a queue znode's path shown to other clients, in bytes. Longer paths lose their end.
pub const PARTY_PATH_MAX: usize = 1_024;

/// Limit of other clients' names in one answer, in bytes; an answer omits further names. The rest of an
/// answer belongs to the client, and is no longer than the request.
pub const PARTIES_MAX_BYTES: usize = 64 << 10;

/// Returns the limit of permits in the data of a lock's znode.
pub(crate) fn limit_in(data: Option<&bytes::Bytes>) -> Option<u32> {
    data.and_then(|data| rowlock_proto::lock::limit_in(data))
}

/// Returns whether no lock may have this path: znodes at and below `/zookeeper` belong to the cluster, and a
/// container made by acquire would lie among quotas.
fn is_reserved(lock: &str) -> bool {
    lock.strip_prefix("/zookeeper").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the path of a queue znode.
pub(crate) fn queue_path(lock: &str, name: &str) -> String {
    rowlock_proto::path::join(lock, name)
}
