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
mod contender;
mod deadlock;
mod index;
mod leave;
mod lock;
mod party;
mod publish;
mod question;
mod view;

pub use ask::{ASKED_MAX, AskedHolder};
pub(crate) use contender::{Contender, Key, address_in, queue_path};
pub use contender::{LABEL_MAX, PARTIES_MAX_BYTES, PARTY_PATH_MAX, PLACES_MAX, QUEUE_MAX};
pub(crate) use deadlock::SEARCH_FLOOR;
pub(crate) use index::Locks;
pub(crate) use lock::Lock;
pub(crate) use party::Room;
pub use question::{ASK_PAUSE_MS, ASKERS_MAX, Asker, Deadline, Question};
pub use view::{ContenderView, LockView, Wish};
