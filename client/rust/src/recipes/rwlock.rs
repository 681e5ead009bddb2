//! [`RwLock`]: many readers or one writer, in the order in which they came.
//!
//! Fair to both: a reader waits behind a writer that came before, so writers do not starve; readers next to
//! each other hold together. On plain ZooKeeper this is Curator's recipe, by the names of the queue znodes,
//! except that each waits for the nearest one that is in its way.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use super::convert;
use super::guard::Guard;
use super::names::Kind;
use super::request::{Granted, LockRequest};
use super::site::{self, Site};
use crate::client::Client;
use crate::error::{Error, Kept, ReleaseError};

/// A handle of a read-write lock: a name on a session. Making one does nothing.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = client.rwlock("prices");
/// let reader = lock.read().await?;
/// match reader.try_upgrade().await {
///     Ok(writer) => writer.release().await?, // we were alone
///     Err(kept) => kept.guard.release().await?, // another client reads, or waits
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    site: Site,
}

/// The lock, shared with other readers. All of a [`Guard`] is here as well.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    guard: Guard,
}

/// The lock, held alone. All of a [`Guard`] is here as well.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard {
    guard: Guard,
}

impl Client {
    /// The read-write lock of this name, below the lock base. A mutex of the same name is the same lock: its
    /// holders are writers.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::named(self, site::Kind::Lock, name.as_ref()) }
    }

    /// The read-write lock at this very path, for sharing it with programs that use other ZooKeeper clients
    /// (Curator's `InterProcessReadWriteLock`, kazoo's `ReadLock` and `WriteLock`).
    pub fn rwlock_at(&self, path: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::at(self, path.as_ref()) }
    }
}

impl RwLock {
    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Asks for a reader's place with options.
    pub fn read_request(&self) -> LockRequest<ReadGuard> {
        LockRequest::one(&self.site, Kind::Read, 0)
    }

    /// Asks for the writer's place with options.
    pub fn write_request(&self) -> LockRequest<WriteGuard> {
        LockRequest::one(&self.site, Kind::Write, 0)
    }

    /// Waits until no writer that came before is left.
    ///
    /// # Errors
    /// As [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of asking, readers next to each other together.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.read_request().lock().await
    }

    /// Waits until no earlier place is left.
    ///
    /// # Errors
    /// As [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of asking.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.write_request().lock().await
    }

    /// [`RwLock::read`] as a future of its own, which can be stored and spawned.
    ///
    /// # Errors
    /// As [`RwLock::read`].
    /// # Cancel safety
    /// As [`RwLock::read`].
    pub fn read_owned(&self) -> impl Future<Output = Result<ReadGuard, Error>> + Send + use<> {
        self.read_request().lock_owned()
    }

    /// [`RwLock::read`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn read_timeout(&self, patience: Duration) -> Result<ReadGuard, Error> {
        self.read_request().timeout(patience).lock().await
    }

    /// [`RwLock::write`] as a future of its own, which can be stored and spawned.
    ///
    /// # Errors
    /// As [`RwLock::write`].
    /// # Cancel safety
    /// As [`RwLock::write`].
    pub fn write_owned(&self) -> impl Future<Output = Result<WriteGuard, Error>> + Send + use<> {
        self.write_request().lock_owned()
    }

    /// [`RwLock::write`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn write_timeout(&self, patience: Duration) -> Result<WriteGuard, Error> {
        self.write_request().timeout(patience).lock().await
    }

    /// A reader's place if it is free at once; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.read_request().try_lock().await
    }

    /// The writer's place if it is free at once; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.write_request().try_lock().await
    }
}

impl ReadGuard {
    /// Becomes the writer if no other client holds the lock or waits for it; the guard comes back
    /// otherwise. (Two readers that both waited to become the writer would wait for ever, so there is only a
    /// try.) The writer's token is a new and higher one.
    ///
    /// # Errors
    /// The guard and why: [`Error::Busy`], and then it is as before; [`Error::NotHeld`], the end of the
    /// session, or an error after which it may have happened, and then the lock is lost.
    /// # Cancel safety
    /// Dropping the future gives the lock back.
    pub async fn try_upgrade(self) -> Result<WriteGuard, Kept<ReadGuard>> {
        let upgraded = convert::upgrade(self.guard).await;
        upgraded.map(|guard| WriteGuard { guard }).map_err(|kept| kept.map(|guard| ReadGuard { guard }))
    }

    /// Releases the read lock, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl WriteGuard {
    /// Goes on as a reader, without letting anybody in between: the readers that wait directly behind come
    /// in, a writer that waits does not. On Rowlock the token stays the same; on plain ZooKeeper a new place
    /// is taken, which is refused ([`Error::Unsupported`]) when a writer waits already.
    ///
    /// # Errors
    /// The guard and why: [`Error::Unsupported`], and then it is as before; [`Error::NotHeld`], the end of
    /// the session, or an error after which it may have happened, and then the lock is lost.
    /// # Cancel safety
    /// Dropping the future gives the lock back.
    pub async fn downgrade(self) -> Result<ReadGuard, Kept<WriteGuard>> {
        let downgraded = convert::downgrade(self.guard).await;
        downgraded.map(|guard| ReadGuard { guard }).map_err(|kept| kept.map(|guard| WriteGuard { guard }))
    }

    /// Releases the write lock, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for ReadGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Deref for WriteGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Granted for ReadGuard {
    fn of(guards: Vec<Guard>) -> Self {
        ReadGuard { guard: Guard::of(guards) }
    }
}

impl Granted for WriteGuard {
    fn of(guards: Vec<Guard>) -> Self {
        WriteGuard { guard: Guard::of(guards) }
    }
}
