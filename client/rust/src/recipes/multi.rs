//! [`MultiLock`]: several locks at once, all or none.
//!
//! A Rowlock server enters all queues in a single command: two clients with the same locks in opposite orders
//! cannot wait for each other. On plain ZooKeeper the client takes the locks one after another in the order
//! of their paths, with the same effect among clients of this crate.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use super::acquire::LockSpec;
use super::guard::Guard;
use super::loss::Loss;
use super::names::Kind;
use super::request::{Granted, LockRequest};
use super::served;
use super::site::{self, Site};
use crate::client::Client;
use crate::error::{Error, LostReason, ReleaseError};
use rowlock_env::decides;

/// Handle of several locks. Making a handle does nothing.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let both = client.lock_all(["account/1", "account/2"]).await?; // in any order, by anybody
/// let tokens: Vec<_> = both.guards().iter().map(|guard| guard.token()).collect();
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    client: Client,
    sites: Vec<Site>,
}

/// Several held locks. Dropping the guard releases the locks in the background.
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl Client {
    /// The locks of these names ([`Client::mutex`]) as a single lock.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let site = |name: N| Site::named(self, site::Kind::Lock, name.as_ref());
        MultiLock { client: self.clone(), sites: names.into_iter().map(site).collect() }
    }

    /// The locks at these paths ([`Client::mutex_at`]) as a single lock.
    pub fn multi_at<P: AsRef<str>>(&self, paths: impl IntoIterator<Item = P>) -> MultiLock {
        let site = |path: P| Site::at(self, path.as_ref());
        MultiLock { client: self.clone(), sites: paths.into_iter().map(site).collect() }
    }

    /// Waits for all of these locks: `client.multi(names).lock()`.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`]; the client then holds none of the locks. [`Error::InvalidName`]
    /// if a name occurs twice.
    /// # Cancel safety
    /// Dropping the future leaves all queues.
    pub async fn lock_all<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<MultiGuard, Error> {
        self.multi(names).lock().await
    }
}

impl MultiLock {
    /// The paths of their znodes, in the order of their names as given.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.sites.iter().map(Site::path)
    }

    /// Returns a request for these locks, to set options of.
    pub fn request(&self) -> LockRequest<MultiGuard> {
        let wanted = |site: &Site| Ok(LockSpec { lock: site.absolute()?, kind: Kind::Lock, limit: 0 });
        LockRequest::new(&self.client, self.sites.iter().map(wanted).collect())
    }

    /// Waits for all of the locks. The client enters all queues at once, and holds the free locks while
    /// waiting for the rest.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`]; the client then holds none of the locks.
    /// # Cancel safety
    /// Dropping the future leaves all queues.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.request().lock().await
    }

    /// Returns an owned future of [`MultiLock::lock`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`MultiLock::lock`].
    /// # Cancel safety
    /// The cancel safety of [`MultiLock::lock`].
    pub fn lock_owned(&self) -> impl Future<Output = Result<MultiGuard, Error>> + Send + use<> {
        self.request().lock_owned()
    }

    /// Waits for all of the locks for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`MultiLock::lock`].
    /// # Cancel safety
    /// Dropping the future leaves all queues.
    pub async fn lock_timeout(&self, patience: Duration) -> Result<MultiGuard, Error> {
        self.request().timeout(patience).lock().await
    }

    /// All of the locks if all are free; nothing is left behind otherwise.
    ///
    /// # Errors
    /// The errors of [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves all queues.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.request().try_lock().await
    }
}

impl MultiGuard {
    /// The guards of the single locks, in the order of their names as given.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Splits the guard, to release the locks one by one.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// Reports the hold of all locks, as known here and now.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Waits until the first loss among the locks. Never returns while all are held.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let losses: Vec<Loss> = self.guards.iter().map(Guard::loss).collect();
        let mut waits: Vec<_> = losses.iter().map(|loss| Box::pin(loss.wait())).collect();
        poll_fn(|cx| {
            for wait in &mut waits {
                if let Poll::Ready(reason) = wait.as_mut().poll(cx) {
                    return Poll::Ready(reason);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Releases all locks and waits for the acknowledgement; in a single command on a Rowlock server.
    ///
    /// # Errors
    /// The errors of [`Guard::release`], if any of the releases fails; the call releases all locks.
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        release_all(self.guards).await
    }
}

impl Granted for MultiGuard {
    fn of(guards: Vec<Guard>) -> Self {
        MultiGuard { guards }
    }
}

/// Releases several locks of a session; in a single command for the locks whose queues the server keeps.
async fn release_all(guards: Vec<Guard>) -> Result<(), ReleaseError> {
    let Some(client) = guards.first().map(|guard| guard.client().clone()) else { return Ok(()) };
    let (mut claims, mut places, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for mut guard in guards {
        match guard.take_claim() {
            Some((claim, place)) => {
                claims.push(claim);
                places.push(place);
            }
            None => others.push(guard),
        }
    }
    let mut outcome = Ok(());
    if !claims.is_empty() {
        match served::release(&client, claims).await {
            Ok(held) => {
                places.iter_mut().for_each(served::Served::forget);
                if decides!("some-lock-is-lost", held.contains(&false)) {
                    outcome = Err(ReleaseError::NotHeld);
                }
            }
            // The places are left in the background.
            Err(_) => outcome = Err(ReleaseError::Unknown),
        }
    }
    for guard in others {
        outcome = outcome.and(guard.release().await);
    }
    outcome
}
