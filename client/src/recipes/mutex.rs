//! [`Mutex`]: the fair lock. Who asked first gets it first; a release wakes only the next one.

use std::future::Future;
use std::time::Duration;

use rowlock_proto::path;

use super::acquire::Wanted;
use super::guard::Guard;
use super::names::{self, Kind};
use super::request::LockRequest;
use crate::client::Client;
use crate::error::Error;

/// A handle of a lock: a name on a session. Making one does nothing; clones are equal.
///
/// Not reentrant: a session that asks twice for one lock queues behind itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    client: Client,
    /// The lock's znode, absolute; or why there is none.
    lock: Result<String, Error>,
}

impl Client {
    /// The lock of this name, below the lock base. Any non-empty text up to 512 bytes is a name; slashes,
    /// spaces and other letters than ASCII are percent-encoded in the znode's name, so that no two names
    /// meet.
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex { client: self.clone(), lock: self.lock_named(name) }
    }

    /// The lock at this very path, for sharing it with programs that use other ZooKeeper clients (Curator's
    /// `InterProcessMutex`, kazoo's `Lock`).
    pub fn mutex_at(&self, path: &str) -> Mutex {
        Mutex { client: self.clone(), lock: self.lock_at(path) }
    }

    /// The path of a lock's znode, by the lock's name.
    pub(crate) fn lock_named(&self, name: &str) -> Result<String, Error> {
        let name = names::escape(name)?;
        Ok(self.absolute(&path::join(&self.config().lock_base, &name)))
    }

    /// The path of a lock's znode, by the application's path.
    pub(crate) fn lock_at(&self, path: &str) -> Result<String, Error> {
        match path::validate(path) {
            Ok(()) if path != "/" => Ok(self.absolute(path)),
            Ok(()) => Err(Error::InvalidName("the root cannot be a lock".to_owned())),
            Err(error) => Err(Error::InvalidName(error.to_string())),
        }
    }
}

impl Mutex {
    /// The path of its znode.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn path(&self) -> Result<String, Error> {
        Ok(self.client.relative(self.lock.clone()?))
    }

    /// The path of its znode as the server and its reports ([`Client::report`]) know it: with the client's
    /// chroot.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub fn server_path(&self) -> Result<&str, Error> {
        self.lock.as_deref().map_err(Clone::clone)
    }

    /// Asks with options: `mutex.request().max_hold(..).meta(..).lock()`.
    pub fn request(&self) -> LockRequest {
        let wanted = |lock| vec![Wanted { lock, kind: Kind::Lock, limit: 0 }];
        LockRequest::new(&self.client, self.lock.clone().map(wanted))
    }

    /// Waits for the lock. On a Rowlock server a free lock takes one round trip, and so does its release.
    ///
    /// # Errors
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended; nothing is held and nothing waits any
    /// more. [`Error::PlaceLost`]: somebody deleted our znode in the queue. [`Error::TooManyLocks`],
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
    /// # Errors
    /// As [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn lock_owned(&self) -> impl Future<Output = Result<Guard, Error>> + Send + use<> {
        self.request().lock_owned()
    }

    /// Waits for the lock for at most `patience` altogether, lost connections and all predecessors included.
    /// With zero it waits for nobody: a free lock is taken.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder; the queue is left then. Otherwise as
    /// [`Mutex::lock`].
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn lock_timeout(&self, patience: Duration) -> Result<Guard, Error> {
        self.request().timeout(patience).lock().await
    }

    /// Takes the lock if nobody holds it or waits for it; `None` otherwise, and then nothing is left behind.
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
