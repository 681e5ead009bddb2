//! Locks, leases and znodes for clients without a session of the ZooKeeper protocol. This layer contains the
//! decisions and imports neither HTTP nor sockets; `http/api` translates between HTTP and this layer.
//!
//! A *REST lease* (docs/rest.md) is an ordinary session, and a request on a lock becomes the command of a
//! Rowlock client: the same queue, the same tagged writes, the same fencing tokens. Any node can serve any
//! request: the secret (session id and password) authorizes the request, and the node acts with the session's
//! present attachment. A node reattaches the session only to begin a new page of attempts (`request_id.rs`);
//! pending requests of the session continue.
//!
//! Must never do: keep a lease alive. Only a request of the lease's client is a keepalive.

mod acquire;
mod call;
mod election;
mod handle;
mod lease;
mod lock;
mod request_id;
mod state_lock;
mod watch;
mod znode;

pub use acquire::{AcquireOptions, Acquired, For, Part};
pub use election::{Led, election};
pub use handle::{Api, Caller, Refusal};
pub use lease::{Lease, Opened, Secret};
pub use lock::{LockName, Questioned, Which};
pub use state_lock::{LockInfo, StateLock, Unlocked, state_lock};
pub use watch::{EventBatch, Watch};
pub use znode::{By, Change, Changed, Children, Consistency, Page, ZnodePath, acl_entry, acl_text};

#[cfg(test)]
mod tests;
