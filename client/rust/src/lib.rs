//! The embeddable Rowlock client: sessions, znodes, fair locks.
//!
//! It speaks the ZooKeeper protocol, so it works with a Rowlock cluster and with Apache ZooKeeper.
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
//! A lock of a distributed system is not a mutex of one process. Its holder may be stopped (a paused machine,
//! a long collection, a debugger) while time goes on for everybody else: the cluster has to grant the lock to
//! the next one at some point, and the old holder may wake with a write half on its way. No lock service can
//! call that write back. So each grant comes with a **fencing token** ([`Guard::token`]) that rises from
//! holder to holder: send it with every write, and let the storage refuse tokens lower than the highest it
//! has seen ([`Fence`] is that comparison). Where the storage is the coordinator itself, [`Guard::txn`] does
//! so: a transaction that takes effect only while our place in the queue is there.
//! `examples/fenced_write.rs` shows a paused holder's late write being refused by an axum service.
//!
//! # What "lost" means
//!
//! **A session** is kept alive by heartbeats, three per timeout. When its server fails, the client moves to
//! another and the session goes on: [`SessionState::Suspended`] is not a loss. It ends when a server says so,
//! or at the **local deadline** if no heartbeat is acknowledged: sent time of the last acknowledged one, plus
//! the timeout, less a tenth. So the client knows of the loss *before* the servers expire the session and
//! grant its locks to others, provided that the rates of the clocks differ by less than 5 %. A session that
//! has ended never comes back: [`Client::renew`].
//!
//! **A guard** is a lock that is held. It is lost with its session, when its znode is deleted, by a forced
//! release, or at the end of its maximum hold ([`LockRequest::max_hold`]); [`LostReason`] says which.
//! [`Guard::lost`] tells, [`Guard::run`] stops the work, [`Guard::loss`] gives other tasks the same news,
//! [`Guard::valid_until`] says how long the lock is certain, [`Guard::check`] asks the cluster. Dropping a
//! guard never blocks and needs no runtime.
//!
//! # What is promised
//!
//! **Mutual exclusion**, in the order of the cluster's log. **Fairness**: a lock is a queue; places are taken
//! in the order in which the cluster commits them, also beside clients of other makes (Curator, kazoo), and
//! without overtaking. A reconnect keeps the place, dropping the future of [`Mutex::lock`] gives it up, at
//! whatever step. **One wake-up**: a release wakes the next waiter alone.
//!
//! **Exactly once** on Rowlock: every write carries an id; when a connection breaks, what is unanswered is
//! sent again on the next one, in the same order, and a write that had taken effect is answered as the first
//! time. So no call fails with [`Error::ConnectionLoss`] before the session ends. On plain ZooKeeper such a
//! call may have taken effect or not; locks find their places again there too, other writes are for the
//! caller to check.
//!
//! **On Rowlock and on ZooKeeper**: the client asks each server what it understands ([`Client::extensions`]).
//! A Rowlock keeps the queues itself: a free lock takes one round trip, and so does its release; a grant is
//! pushed. On plain ZooKeeper the same calls use the recipes of znodes and watches. What cannot be done there
//! is refused ([`Error::Unsupported`]): lock-delay, deadlock detection by [`Owner`], reports.
//!
//! **Errors** say what is known: [`Error::may_have_happened`] and [`Error::is_retryable`].
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
//! # Tracing
//!
//! Taking a lock is a span of the crate `tracing` (`rowlock.acquire`, level debug) with the fields `lock`,
//! `locks` (how many at once), `token` and `position` (where it stood first), a child of the caller's span. A
//! subscriber of the program (`tracing-opentelemetry`, for example) carries it on, so this crate needs no
//! exporter of its own.
//!
//! # Inside
//!
//! `session::machine` decides (pure: frames and the clock in; bytes and completions out). Handles and one
//! task per session (`connection`) share it in `session::core`. Everything outside goes through
//! `rowlock-env`, so that the simulator runs this very code. Invariant: this crate knows `proto` and `env`
//! and nothing of the servers. The test kit, which runs some, is the crate `rowlock-testkit`.

#![warn(missing_docs)]

mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod client;
mod connect_error;
mod connection;
mod environment;
mod error;
mod fence;
mod limits;
mod party;
mod path;
mod recipes;
mod reports;
mod servers;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod watch;
mod znode;

pub use admin::{Members, Reconfig};
pub use builder::{ClientBuilder, Credential, PreferLeader, QueueNames};
pub use client::Client;
pub use connect_error::{AttemptError, ConfigError, ConnectError};
pub use error::{Error, Kept, LockLost, LostReason, NameError, ReleaseError};
pub use fence::{Entered, Fence, StaleToken};
pub use party::Party;
pub use recipes::barrier::Barrier;
pub use recipes::counter::AtomicCounter;
pub use recipes::double_barrier::{DoubleBarrier, Membership};
pub use recipes::election::{
    Candidate, Election, Leader, LeaderStream, LeaderWatcher, Leadership, TransferError,
};
pub use recipes::guard::{Guard, WaitStats};
pub use recipes::latch::CountDownLatch;
pub use recipes::loss::Loss;
pub use recipes::multi::{MultiGuard, MultiLock};
pub use recipes::mutex::Mutex;
pub use recipes::names::LockName;
pub use recipes::questions::{Question, Questions};
pub use recipes::reentrant::{ReentrantGuard, ReentrantMutex};
pub use recipes::request::LockRequest;
pub use recipes::rwlock::{ReadGuard, RwLock, WriteGuard};
pub use recipes::semaphore::{Permits, Semaphore};
pub use reports::HistoryQuery;
#[cfg(feature = "tls")]
pub use rowlock_tls::Pem;
pub use session::extensions::Extensions;
pub use session::ticket::{NoTicket, SessionTicket};
pub use session::{SessionState, SessionStates};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use transaction::{Outcome, Transaction};
pub use watch::OneshotWatch;
pub use znode::{AccessList, Children, Created, Watched, Znode};

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
