//! [`Semaphore`]: a number of permits, handed out in the order of asking.
//!
//! How many there are stands in the data of the semaphore's znode (`permits=3`): the first who asks writes
//! it, and a client that names another number is refused. So all agree, on every server, and people can see
//! it.

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

/// A handle of a semaphore: a name on a session, and how many permits it has. Making one does nothing.
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

/// Permits of a semaphore. All of a [`Guard`] is here as well; the fencing token tells requests apart, but
/// permits that are held together have no order: it does not keep an earlier holder's writes out.
#[derive(Debug)]
#[must_use = "dropping the permits gives them back"]
pub struct Permits {
    guard: Guard,
}

impl Client {
    /// The semaphore of this name, below the lock base, with `limit` permits. The first who asks for one
    /// decides how many there are; 0: whatever was decided before.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore { site: Site::named(self, site::Kind::Lock, name.as_ref()), limit }
    }

    /// The semaphore at this very path.
    pub fn semaphore_at(&self, path: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore { site: Site::at(self, path.as_ref()), limit }
    }
}

impl Semaphore {
    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Asks for permits with options.
    pub fn request(&self, count: u32) -> LockRequest<Permits> {
        let request = LockRequest::one(&self.site, Kind::Permits(count), self.limit);
        if count == 0 { request.refused(Error::InvalidArgument("no permits at all")) } else { request }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`Error::LimitConflict`]: the semaphore has another number of permits. Otherwise as
    /// [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of asking: who wants many is not overtaken by those who want few.
    pub async fn acquire(&self) -> Result<Permits, Error> {
        self.acquire_many(1).await
    }

    /// Waits for `count` permits, which are granted together.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`]; [`Error::LimitConflict`] also when the semaphore has fewer.
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn acquire_many(&self, count: u32) -> Result<Permits, Error> {
        self.request(count).lock().await
    }

    /// [`Semaphore::acquire_many`] as a future of its own, which can be stored and spawned.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    /// # Cancel safety
    /// As [`Semaphore::acquire_many`].
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

    /// Takes `count` permits if they are free and no client waits; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permits>, Error> {
        self.request(count).try_lock().await
    }

    /// Takes a permit if one is free and no client waits; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_acquire(&self) -> Result<Option<Permits>, Error> {
        self.try_acquire_many(1).await
    }

    /// Changes how many permits there are, for everybody. Permits that are held stay held; more of them than
    /// there are now is possible until they are given back. This handle asks with the new number from now on;
    /// others, made with the old one, are told [`Error::LimitConflict`].
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

    /// Returns the free permits: neither taken nor promised to a client that waits for more
    /// of them. It may be out of date when it arrives.
    ///
    /// # Errors
    /// The common ones of reads.
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

    /// Gives them back, as [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
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
