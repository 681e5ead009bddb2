//! [`Mutex`]: the fair lock. Who asked first gets it first; a release wakes only the next one.

use std::future::Future;
use std::time::Duration;

use super::guard::Guard;
use super::names::Kind as Mode;
use super::request::LockRequest;
use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;

/// A handle of a lock: a name on a session. Making one does nothing; clones are equal.
///
/// Not reentrant: a session that asks twice for one lock queues behind itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    site: Site,
}

impl Client {
    /// The lock of this name, which is a path below the lock base: `ci/deploy` is `/locks/ci/deploy`.
    /// [`LockName`](crate::LockName) says what a name may be.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { site: Site::named(self, Kind::Lock, name.as_ref()) }
    }

    /// The lock at this very path, for sharing it with programs that use other ZooKeeper clients (Curator's
    /// `InterProcessMutex`, kazoo's `Lock`).
    pub fn mutex_at(&self, path: impl AsRef<str>) -> Mutex {
        Mutex { site: Site::at(self, path.as_ref()) }
    }
}

impl Mutex {
    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// The path of its znode as the server and its reports ([`Client::report`]) know it: with the client's
    /// chroot.
    pub fn server_path(&self) -> String {
        self.site.client().absolute(self.site.path())
    }

    /// Says now what the first use would say of the name or the path; without traffic.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn validate(&self) -> Result<(), Error> {
        self.site.usable().map(drop)
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Asks with options: `mutex.request().max_hold(..).meta(..).lock()`.
    pub fn request(&self) -> LockRequest {
        LockRequest::one(&self.site, Mode::Lock, 0)
    }

    /// Waits for the lock. On a Rowlock server a free lock takes one round trip, and so does its release.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended; nothing is held and nothing waits any
    /// more. [`Error::PlaceLost`]: another client deleted our znode in the queue. [`Error::TooManyLocks`],
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth, quotas). A lost connection is no error here: the
    /// place in the queue is kept over reconnects.
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue, also when the request to enter it is still on its
    /// way.
    /// # Ordering
    /// The place in the queue is taken when the server handles the first request, in the order of the
    /// session.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.request().lock().await
    }

    /// [`Mutex::lock`] as a future of its own, which can be stored and spawned.
    ///
    /// One that was polled and is then neither polled again nor dropped keeps its place, and the lock once it
    /// is granted, for as long as the session lives.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn lock_owned(&self) -> impl Future<Output = Result<Guard, Error>> + Send + use<> {
        self.request().lock_owned()
    }

    /// Waits for the lock for at most `patience` altogether, lost connections and all predecessors included.
    /// With zero it does not wait: a free lock is taken.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder; the queue is left then. Otherwise as
    /// [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn lock_timeout(&self, patience: Duration) -> Result<Guard, Error> {
        self.request().timeout(patience).lock().await
    }

    /// Takes the lock if it is free and has no waiter; `None` otherwise, and then nothing is left behind.
    /// Whether it is free is decided by the cluster, not by a read of one server.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.request().try_lock().await
    }
}
