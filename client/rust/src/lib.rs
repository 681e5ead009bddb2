//! The embeddable Rowlock client: sessions, znodes, fair locks.
//!
//! The client speaks the ZooKeeper protocol, and works with Rowlock clusters and with Apache ZooKeeper.
//!
//! ```no_run
//! use std::time::Duration;
//! use rowlock_client::{Client, Error};
//!
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().endpoints("a:2181,b:2181,c:2181").label("worker-7").connect().await?;
//! let mutex = client.mutex("orders/42"); // a handle, no traffic
//!
//! match mutex.lock_timeout(Duration::from_secs(5)).await {
//!     Ok(guard) => {
//!         let token = guard.token(); // send it with every write: storage refuses lower ones
//!         guard.run(async { /* dropped at the moment the lock is lost */ let _ = token; }).await?;
//!         guard.release().await?;
//!     }
//!     Err(Error::Timeout { position, holder }) => println!("still {position:?} behind {holder:?}"),
//!     Err(error) => return Err(error.into()),
//! }
//! client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Why a token
//!
//! A lock of a distributed system differs from a mutex of a process. The lock's holder may be stopped (a
//! paused machine, a long collection, a debugger) while time goes on for everybody else: at some point the
//! cluster has to grant the lock to the next waiter, and the old holder may wake with a write half on its
//! way. No lock service can call this write back. Each grant therefore comes with a **fencing token**
//! ([`Guard::token`]) that rises from holder to holder: send the token with every write, and let the storage
//! refuse tokens below the highest token seen ([`Fence`] does the comparison). With the coordinator itself as
//! the storage, use [`Guard::txn`]: the transaction takes effect only while our queue znode exists.
//! `examples/fenced_write.rs` shows an axum service refusing a paused holder's late write.
//!
//! # What "lost" means
//!
//! **A session** lives by heartbeats, three per timeout. When the session's server fails, the client moves to
//! another server and the session goes on: [`SessionState::Suspended`] is not a loss. The session ends when a
//! server reports the end, or at the **local deadline** if no server acknowledges a heartbeat: send time of
//! the last acknowledged heartbeat, plus the timeout, less a tenth. The client thus learns of the loss
//! *before* the servers expire the session and grant the session's locks to other clients, provided the clock
//! rates differ by less than 5 %. A session that has ended never comes back: [`Client::renew`].
//!
//! **A guard** is a held lock. A guard loses the lock with the session, when the znode is deleted, by a
//! forced release, or at the end of the maximum hold ([`LockRequest::max_hold`]); [`LostReason`] names the
//! cause. [`Guard::lost`] waits for the loss, [`Guard::run`] stops the work, [`Guard::loss`] carries the news
//! to other tasks, [`Guard::valid_until`] returns the time until which the lock is certain, [`Guard::check`]
//! asks the cluster. Dropping a guard never blocks and needs no runtime.
//!
//! # What is promised
//!
//! **Mutual exclusion**, in the order of the cluster's log. **Fairness**: a lock is a queue in the order in
//! which the cluster commits the requests, without overtaking and shared with clients of other makes
//! (Curator, kazoo). A reconnect keeps the queue position; dropping the future of [`Mutex::lock`] leaves the
//! queue, at whatever step. **Single wake-up**: a release wakes the next waiter alone.
//!
//! **Exactly once** on Rowlock: every write carries an id. When a connection breaks, the client sends the
//! unanswered requests again on the next connection, in the same order, and the server answers a write that
//! had taken effect with the first answer. No call fails with [`Error::ConnectionLoss`] before the session
//! ends. On plain ZooKeeper such a call may have taken effect or not; locks find their queue znodes again
//! there too, and the caller checks all other writes.
//!
//! **On Rowlock and on ZooKeeper**: the client asks each server for the supported extensions
//! ([`Client::extensions`]). A Rowlock server keeps the queues itself: a free lock takes a single round trip,
//! as does the release, and the server pushes grants. On plain ZooKeeper the same calls use the recipes of
//! znodes and watches. ZooKeeper's limits are errors ([`Error::Unsupported`]): lock-delay, deadlock detection
//! by [`Owner`], reports.
//!
//! **Errors** state the known outcome: [`Error::may_have_happened`] and [`Error::is_retryable`].
//!
//! # Kinds of locks
//!
//! | | |
//! |---|---|
//! | [`Client::mutex`] | one holder; [`Mutex::request`] for options: label, maximum hold, lock-delay, owner, shared |
//! | [`Client::rwlock`] | many readers or one writer; downgrade, try_upgrade |
//! | [`Client::semaphore`] | permits, one or many at a time; the servers keep their number |
//! | [`Client::lock_all`] | several mutexes in one step, without deadlocks |
//!
//! # Metrics and tracing
//!
//! An [`Observer`] gets the length of each wait and hold, with a name of few values that the request carries
//! ([`LockRequest::metrics_name`]). docs/monitoring.md has the names that all clients share.
//!
//! Taking a lock is a span of the crate `tracing` (`rowlock.acquire`, level debug) with the fields `lock`,
//! `locks` (the number of locks), `token` and `position` (the first position in the queue), a child of the
//! caller's span. A subscriber of the program (`tracing-opentelemetry`, for example) exports the span; this
//! crate needs no exporter.
//!
//! # Inside
//!
//! `session::machine` decides (pure: frames and the clock in; bytes and completions out). Handles and a task
//! per session (`connection`) share the machine in `session::core`. Everything outside goes through
//! `rowlock-env`, and the simulator runs the same code. Invariant: this crate knows `proto` and `env` and
//! nothing of the servers. The test kit, which runs servers, is the crate `rowlock-testkit`.

#![warn(missing_docs)]

mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod client;
mod connect_error;
mod connection;
mod duration;
mod environment;
mod error;
mod fence;
mod limits;
mod observer;
mod party;
mod path;
mod recipes;
mod servers;
mod session;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod znode;

pub use admin::{HistoryQuery, Members, Reconfig};
pub use builder::ClientBuilder;
pub use client::Client;
pub use connect_error::{AttemptError, ConfigError, ConnectError};
pub use duration::{ParseDurationError, parse_duration};
pub use error::{Error, Kept, LockLost, LostReason, NameError, ReleaseError};
pub use fence::{Entered, Fence, StaleToken};
pub use observer::{Hold, HoldOutcome, Observer, Wait, WaitOutcome};
pub use party::Party;
pub use recipes::counter::AtomicCounter;
pub use recipes::double_barrier::{DoubleBarrier, Membership};
pub use recipes::election::{Election, Leadership, TransferError};
pub use recipes::guard::{Guard, WaitStats};
pub use recipes::latch::{Barrier, CountDownLatch};
pub use recipes::leaders::{Candidate, Leader, LeaderStream, LeaderWatcher};
pub use recipes::loss::{Loss, Questions};
pub use recipes::multi::{MultiGuard, MultiLock};
pub use recipes::mutex::Mutex;
pub use recipes::names::LockName;
pub use recipes::reentrant::{ReentrantGuard, ReentrantMutex};
pub use recipes::request::LockRequest;
pub use recipes::rwlock::{ReadGuard, RwLock, WriteGuard};
pub use recipes::semaphore::{Permits, Semaphore};
#[cfg(feature = "tls")]
pub use rowlock_tls::Pem;
pub use session::extensions::Extensions;
pub use session::lock_states::Question;
pub use session::{NoTicket, SessionState, SessionStates, SessionTicket};
pub use settings::{Credential, PreferLeader, QueueNames};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use transaction::{Outcome, Transaction};
pub use znode::{AccessList, Children, Created, OneshotWatch, Watched, Znode};

pub use bytes::Bytes;
pub use rowlock_env::time::Instant;
pub use rowlock_proto::lock::{Claim, Owner};
pub use rowlock_proto::name::NameRule;
pub use rowlock_proto::path::PathError;
pub use rowlock_proto::report;
pub use rowlock_proto::{
    Acl, ClusterId, CreateMode, ErrorCode, EventType, FencingToken, Id, NodeId, SessionId, Stat, Version,
    WatchedEvent, Zxid, perms,
};
