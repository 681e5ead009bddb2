//! [`Semaphore`]: a number of permits, granted in the order of the requests.
//!
//! The data of the semaphore's znode hold the number of permits (`permits=3`): the first client writes the
//! number, and the servers refuse a client with another number. All clients agree, on every server, and
//! people can read the number.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use rowlock_proto::ErrorCode;
use rowlock_proto::lock::{limit_data, limit_in};

use super::guard::Guard;
use super::names::Kind;
use super::queue::Queue;
use super::request::{Granted, LockRequest};
use super::site::{self, Site};
use crate::client::Client;
use crate::error::{Error, ReleaseError};

/// Handle of a semaphore: a name on a session, and the number of permits. Making a handle does nothing.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let connections = client.semaphore("database", 20);
/// let three = connections.acquire_many(3).await?;
/// println!("{} of 20 are left", connections.available().await?);
/// three.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    site: Site,
    limit: u32,
}

/// Permits of a semaphore. Dereferences to [`Guard`]. The fencing token tells requests apart, but concurrent
/// permits have no order: the token does not keep an earlier holder's writes out.
#[derive(Debug)]
#[must_use = "dropping the permits gives them back"]
pub struct Permits {
    guard: Guard,
}

impl Client {
    /// The semaphore of this name, below the lock base, with `limit` permits. The first client's request
    /// decides the number; 0 accepts the existing number.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore { site: Site::named(self, site::Kind::Lock, name.as_ref()), limit }
    }

    /// The semaphore at this path.
    pub fn semaphore_at(&self, path: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore { site: Site::at(self, path.as_ref()), limit }
    }
}

impl Semaphore {
    /// Path of the semaphore's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Requests permits with options.
    pub fn request(&self, count: u32) -> LockRequest<Permits> {
        let request = LockRequest::one(&self.site, Kind::Permits(count), self.limit);
        if count == 0 { request.refused(Error::InvalidArgument("no permits at all")) } else { request }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`Error::LimitConflict`]: the semaphore has another number of permits. Otherwise the errors of
    /// [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of the requests: small requests do not overtake a large request.
    pub async fn acquire(&self) -> Result<Permits, Error> {
        self.acquire_many(1).await
    }

    /// Waits for `count` permits, granted together.
    ///
    /// # Errors
    /// The errors of [`Semaphore::acquire`]; [`Error::LimitConflict`] also when the semaphore has fewer
    /// permits.
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn acquire_many(&self, count: u32) -> Result<Permits, Error> {
        self.request(count).lock().await
    }

    /// Returns an owned future of [`Semaphore::acquire_many`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`Semaphore::acquire_many`].
    /// # Cancel safety
    /// The cancel safety of [`Semaphore::acquire_many`].
    pub fn acquire_owned(&self, count: u32) -> impl Future<Output = Result<Permits, Error>> + Send + use<> {
        self.request(count).lock_owned()
    }

    /// [`Semaphore::acquire_many`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Semaphore::acquire_many`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn acquire_timeout(&self, count: u32, patience: Duration) -> Result<Permits, Error> {
        self.request(count).timeout(patience).lock().await
    }

    /// Takes `count` free permits unless a client waits; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`Semaphore::acquire_many`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permits>, Error> {
        self.request(count).try_lock().await
    }

    /// Takes a free permit unless a client waits; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`Semaphore::acquire`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_acquire(&self) -> Result<Option<Permits>, Error> {
        self.try_acquire_many(1).await
    }

    /// Changes the number of permits for all clients. Held permits stay held, possibly more than the new
    /// number until their release. This handle uses the new number from now on; handles with the old number
    /// get [`Error::LimitConflict`].
    ///
    /// # Errors
    /// [`Error::Rejected`] (NoNode: the semaphore has not been used yet; NoAuth). [`Error::ConnectionLoss`]
    /// on plain ZooKeeper.
    /// # Cancel safety
    /// A dropped future's change may take effect.
    pub async fn resize(&mut self, limit: u32) -> Result<(), Error> {
        if limit == 0 {
            return Err(Error::InvalidArgument("a semaphore without permits"));
        }
        self.site.client().set(self.site.usable()?, Some(limit_data(limit)), None).await?;
        self.limit = limit;
        Ok(())
    }

    /// Returns the number of free permits: neither held nor reserved for a larger request that waits. The
    /// number may be out of date on arrival.
    ///
    /// # Errors
    /// The common errors of reads.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn available(&self) -> Result<u32, Error> {
        let (client, path) = (self.site.client(), self.site.usable()?);
        client.sync(path).await?;
        let limit = match client.get(path).await {
            Ok(znode) => limit_in(znode.data.as_deref().unwrap_or_default()).unwrap_or(self.limit),
            // It has not been used yet.
            Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(self.limit),
            Err(error) => return Err(error),
        };
        match client.get_children(path).await {
            Ok(children) => Ok(Queue::new(children.names).free_permits(limit)),
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(limit),
            Err(error) => Err(error),
        }
    }
}

impl Permits {
    /// Returns the number of permits held.
    pub fn count(&self) -> u32 {
        match self.guard.kind() {
            Kind::Permits(count) => count,
            Kind::Lock | Kind::Read | Kind::Write => 1,
        }
    }

    /// Releases the permits, as [`Guard::release`].
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for Permits {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Granted for Permits {
    fn of(guards: Vec<Guard>) -> Self {
        Permits { guard: Guard::of(guards) }
    }
}
