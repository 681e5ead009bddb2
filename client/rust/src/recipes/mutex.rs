//! [`Mutex`]: the fair lock. The server grants the lock in the order of the requests; a release wakes only
//! the next waiter.

use std::future::Future;
use std::time::Duration;

use super::guard::Guard;
use super::names::Kind as Mode;
use super::request::LockRequest;
use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;

/// Handle of a lock: a name on a session. Making a handle does nothing; clones are equal.
///
/// Not reentrant: a session that requests a held lock again queues behind itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    site: Site,
}

impl Client {
    /// The lock of this name, a path below the lock base: `ci/deploy` is `/locks/ci/deploy`.
    /// [`LockName`](crate::LockName) has the rule for names.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { site: Site::named(self, Kind::Lock, name.as_ref()) }
    }

    /// The lock at this path, for sharing with programs that use other ZooKeeper clients (Curator's
    /// `InterProcessMutex`, kazoo's `Lock`).
    pub fn mutex_at(&self, path: impl AsRef<str>) -> Mutex {
        Mutex { site: Site::at(self, path.as_ref()) }
    }
}

impl Mutex {
    /// Path of the lock's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Path of the lock's znode on the server and in reports ([`Client::report`]): with the client's chroot.
    pub fn server_path(&self) -> String {
        self.site.client().absolute(self.site.path())
    }

    /// Checks the name or the path, without traffic.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn validate(&self) -> Result<(), Error> {
        self.site.usable().map(drop)
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Requests the lock with options: `mutex.request().max_hold(..).meta(..).lock()`.
    pub fn request(&self) -> LockRequest {
        LockRequest::one(&self.site, Mode::Lock, 0)
    }

    /// Waits for the lock. On a Rowlock server a free lock takes a single round trip, as does the release.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and the request with the session.
    /// [`Error::PlaceLost`]: another client deleted our znode in the queue. [`Error::TooManyLocks`],
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth, quotas). A lost connection is no error here: the
    /// request keeps its queue position over reconnects.
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue, even with the request still under way.
    /// # Ordering
    /// The server assigns the queue position while handling the first request, in the order of the session.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.request().lock().await
    }

    /// Returns an owned future of [`Mutex::lock`], to store or spawn.
    ///
    /// A future that was polled and is then neither polled again nor dropped keeps the queue position, and
    /// the lock after the grant, until the session ends.
    ///
    /// # Errors
    /// The errors of [`Mutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`Mutex::lock`].
    pub fn lock_owned(&self) -> impl Future<Output = Result<Guard, Error>> + Send + use<> {
        self.request().lock_owned()
    }

    /// Waits for the lock for at most `patience` altogether, including lost connections and all predecessors.
    /// Zero takes only a free lock.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder, after leaving the queue. Otherwise the
    /// errors of [`Mutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`Mutex::lock`].
    pub async fn lock_timeout(&self, patience: Duration) -> Result<Guard, Error> {
        self.request().timeout(patience).lock().await
    }

    /// Takes the lock if free and without a waiter; otherwise returns `None` and leaves nothing behind. The
    /// cluster decides, not a read of a single server.
    ///
    /// # Errors
    /// The errors of [`Mutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.request().try_lock().await
    }
}
