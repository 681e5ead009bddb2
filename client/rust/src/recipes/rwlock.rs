//! [`RwLock`]: many readers or a single writer, in the order of the requests.
//!
//! The lock is fair: a reader waits behind an earlier writer, hence writers do not starve; adjacent readers
//! hold together. On plain ZooKeeper the recipe and the names are Curator's, except that each client waits
//! for the nearest blocking znode.

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

/// Handle of a read-write lock: a name on a session. Making a handle does nothing.
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

/// Lock shared with other readers. Dereferences to [`Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    guard: Guard,
}

/// Lock held alone. Dereferences to [`Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard {
    guard: Guard,
}

impl Client {
    /// The read-write lock of this name, below the lock base. A mutex of the same name is the same lock, and
    /// counts as a writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::named(self, site::Kind::Lock, name.as_ref()) }
    }

    /// The read-write lock at this path, for sharing with programs that use other ZooKeeper clients
    /// (Curator's `InterProcessReadWriteLock`, kazoo's `ReadLock` and `WriteLock`).
    pub fn rwlock_at(&self, path: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::at(self, path.as_ref()) }
    }
}

impl RwLock {
    /// Path of the lock's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Requests the lock as a reader, with options.
    pub fn read_request(&self) -> LockRequest<ReadGuard> {
        LockRequest::one(&self.site, Kind::Read, 0)
    }

    /// Requests the lock as a writer, with options.
    pub fn write_request(&self) -> LockRequest<WriteGuard> {
        LockRequest::one(&self.site, Kind::Write, 0)
    }

    /// Waits until no earlier writer is left.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of the requests, adjacent readers together.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.read_request().lock().await
    }

    /// Waits until no earlier holder or waiter is left.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of the requests.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.write_request().lock().await
    }

    /// Returns an owned future of [`RwLock::read`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`RwLock::read`].
    /// # Cancel safety
    /// The cancel safety of [`RwLock::read`].
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

    /// Returns an owned future of [`RwLock::write`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`RwLock::write`].
    /// # Cancel safety
    /// The cancel safety of [`RwLock::write`].
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

    /// Takes the lock as a reader if free at once; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.read_request().try_lock().await
    }

    /// Takes the lock as a writer if free at once; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.write_request().try_lock().await
    }
}

impl ReadGuard {
    /// Converts to the writer if no other client holds the lock or waits; returns the guard otherwise. (Two
    /// readers that both waited for the conversion would wait for ever, hence only a try.) The writer gets a
    /// new and higher token.
    ///
    /// # Errors
    /// The guard and the cause: [`Error::Busy`], with the guard unchanged; [`Error::NotHeld`], the end of the
    /// session, or an error with unknown outcome, after which the lock is lost.
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn try_upgrade(self) -> Result<WriteGuard, Kept<ReadGuard>> {
        let upgraded = convert::upgrade(self.guard).await;
        upgraded.map(|guard| WriteGuard { guard }).map_err(|kept| kept.map(|guard| ReadGuard { guard }))
    }

    /// Releases the read lock, as [`Guard::release`].
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl WriteGuard {
    /// Converts to a reader, with no other holder in between: the readers waiting directly behind join, a
    /// waiting writer does not. On Rowlock the token stays the same; on plain ZooKeeper the client enters the
    /// queue a second time, and fails ([`Error::Unsupported`]) if a writer is waiting.
    ///
    /// # Errors
    /// The guard and the cause: [`Error::Unsupported`], with the guard unchanged; [`Error::NotHeld`], the end
    /// of the session, or an error with unknown outcome, after which the lock is lost.
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn downgrade(self) -> Result<ReadGuard, Kept<WriteGuard>> {
        let downgraded = convert::downgrade(self.guard).await;
        downgraded.map(|guard| ReadGuard { guard }).map_err(|kept| kept.map(|guard| WriteGuard { guard }))
    }

    /// Releases the write lock, as [`Guard::release`].
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
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
