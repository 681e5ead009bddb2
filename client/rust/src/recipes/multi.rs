//! [`MultiLock`]: several locks at once, all or none.
//!
//! Where the server keeps the queues, the places in all of them are taken in one command: two who want the
//! same locks in opposite orders cannot wait for each other. On plain ZooKeeper the locks are taken one after
//! another in the order of their paths, which has the same effect among those who do so.

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

/// A handle of several locks. Making one does nothing.
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

/// Several locks that are held. Dropping it gives them back in the background.
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl Client {
    /// The locks of these names ([`Client::mutex`]) as one.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let site = |name: N| Site::named(self, site::Kind::Lock, name.as_ref());
        MultiLock { client: self.clone(), sites: names.into_iter().map(site).collect() }
    }

    /// The locks at these very paths ([`Client::mutex_at`]) as one.
    pub fn multi_at<P: AsRef<str>>(&self, paths: impl IntoIterator<Item = P>) -> MultiLock {
        let site = |path: P| Site::at(self, path.as_ref());
        MultiLock { client: self.clone(), sites: paths.into_iter().map(site).collect() }
    }

    /// Waits for all of these locks: `client.multi(names).lock()`.
    ///
    /// # Errors
    /// As [`LockRequest::lock`]; none of the locks is held then. [`Error::InvalidName`] when one is named
    /// twice.
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

    /// Waits for all of the locks. Each place is taken at once; those that are free are held while the others
    /// are waited for.
    ///
    /// # Errors
    /// As [`LockRequest::lock`]; none of the locks is held then.
    /// # Cancel safety
    /// Dropping the future leaves all queues.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        self.request().lock().await
    }

    /// [`MultiLock::lock`] as a future of its own, which can be stored and spawned.
    ///
    /// # Errors
    /// As [`MultiLock::lock`].
    /// # Cancel safety
    /// As [`MultiLock::lock`].
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
    /// As [`LockRequest::try_lock`].
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

    /// Lets the locks be given back one by one.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// All of the locks are ours, as far as can be known here and now.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Waits until one of the locks is lost. Never returns while all are held.
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

    /// Gives all locks back and waits until that is acknowledged; in one command where the server keeps the
    /// queues.
    ///
    /// # Errors
    /// As [`Guard::release`], if it is so for any of the locks; all are given back.
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

/// Gives back several locks of one session; what the server keeps, in one command.
async fn release_all(guards: Vec<Guard>) -> Result<(), ReleaseError> {
    let Some(client) = guards.first().map(|guard| guard.client().clone()) else { return Ok(()) };
    let (mut claims, mut places, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for mut guard in guards {
        match guard.give_back() {
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
                if held.contains(&false) {
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
