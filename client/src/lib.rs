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
//! # What to know
//!
//! **A session** is kept alive by heartbeats, three per timeout. When its server fails, the client moves to another and
//! the session goes on: [`SessionState::Suspended`] is not a loss. It ends when a server says so, or at the **local
//! deadline** if no heartbeat is acknowledged: sent time of the last acknowledged one, plus the timeout, less a tenth.
//! So the client knows of the loss *before* the servers expire the session and grant its locks to others, provided that
//! the rates of the clocks differ by less than 5 %. A session that has ended never comes back: [`Client::renew`].
//!
//! **A lock** is a queue. Places are taken in the order in which the cluster commits them; each waiter watches only the
//! one directly before it, so one release wakes one waiter. Holding is decided by the list of the queue, never by a
//! wake-up or a timeout. Reconnects keep the place; dropping the future of [`Mutex::lock`] gives it up.
//!
//! **A guard** is a lock that is held, and can be lost. [`Guard::lost`] tells, [`Guard::run`] stops the work, but a write
//! that is already on the network arrives when it arrives (and a paused process learns nothing while it is paused):
//! [`Guard::token`] rises from holder to holder, so that storage can refuse what comes from an earlier one.
//!
//! **More than a mutex**: [`ReentrantMutex`], [`RwLock`], [`Semaphore`], [`MultiLock`], [`Election`], [`AtomicCounter`],
//! [`CountDownLatch`], [`Barrier`], [`DoubleBarrier`]; all of them on Apache ZooKeeper too. For programs without async
//! code there is feature `blocking`, with the same handles.
//!
//! **Errors** say what is known: [`Error::may_have_happened`] and [`Error::is_retryable`].
//!
//! # Inside
//!
//! `session::machine` decides (pure: frames and the clock in; bytes and completions out), `connection` does the IO in
//! one task per session, handles send it commands. Everything outside goes through `rowlock-env`, so that the simulator
//! runs this very code. Invariant: this crate knows `proto` and `env` and nothing of the servers, but for the test kit
//! (`test_util`), which runs some.

mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod config;
mod connection;
mod error;
mod limits;
mod party;
mod path;
mod recipes;
mod servers;
mod session;
#[cfg(feature = "test-util")]
pub mod test_util;
mod transaction;
mod watch;
mod znode;

pub use client::Client;
pub use config::{ClientConfig, Credential, QueueNames};
pub use error::{ConnectError, Error, LockLost, LostReason, ReleaseError};
pub use party::Party;
pub use recipes::barrier::Barrier;
pub use recipes::counter::AtomicCounter;
pub use recipes::double_barrier::{DoubleBarrier, Membership};
pub use recipes::election::{
    Candidate, Election, Leader, LeaderStream, Leadership, Observer, TransferError,
};
pub use recipes::guard::{Guard, WaitStats};
pub use recipes::latch::CountDownLatch;
pub use recipes::loss::Loss;
pub use recipes::multi::{MultiGuard, MultiLock};
pub use recipes::mutex::Mutex;
pub use recipes::reentrant::{ReentrantGuard, ReentrantMutex};
pub use recipes::request::LockRequest;
pub use recipes::rwlock::{ReadGuard, RwLock, WriteGuard};
pub use recipes::semaphore::{Permits, Semaphore};
pub use session::SessionState;
pub use session::extensions::Extensions;
pub use transaction::{Outcome, Transaction};
pub use watch::OneshotWatch;

pub use rowlock_env::time::Instant;
pub use rowlock_proto::lock::{Claim, Owner};
pub use rowlock_proto::{
    Acl, CreateMode, ErrorCode, EventType, FencingToken, Id, SessionId, Stat, Version, WatchedEvent, Zxid,
    perms,
};
