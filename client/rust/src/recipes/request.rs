//! [`LockRequest`]: a lock, or several, with options.

use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use rowlock_env::time;
use rowlock_proto::lock::Owner;

use super::acquire::{LockSpec, Progress, Terms, acquire};
use super::guard::Guard;
use super::names::Kind;
use super::site::Site;
use crate::client::Client;
use crate::error::Error;
use crate::observer::WaitMeasure;

mod sealed {
    use super::Guard;

    /// The result of a request.
    pub trait Granted: Sized {
        /// Makes the result from the guards of all locks, at least one guard.
        fn of(guards: Vec<Guard>) -> Self;
    }
}

pub(crate) use sealed::Granted;

impl Granted for Guard {
    fn of(guards: Vec<Guard>) -> Self {
        guards.into_iter().next().expect("one guard per lock, and a request has at least one lock")
    }
}

/// Request for a lock (or several) with options, made by `request()` of the handles; does nothing until
/// [`LockRequest::lock`] or [`LockRequest::try_lock`].
///
/// The comments name the options that need a Rowlock server; on plain ZooKeeper the client refuses these
/// options with [`Error::Unsupported`] before any request.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let request = client.mutex("orders/42").request().meta("job=1").max_hold(Duration::from_secs(60));
/// let guard = request.timeout(Duration::from_secs(5)).lock().await?;
/// tokio::select! {
///     reason = guard.lost() => println!("stop: {reason}"),
///     () = guard.expiring() => println!("come to an end"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is locked"]
pub struct LockRequest<G = Guard> {
    client: Client,
    wanted: Result<Vec<LockSpec>, Error>,
    terms: Terms,
    patience: Option<Duration>,
    grants: PhantomData<fn() -> G>,
}

impl<G> Clone for LockRequest<G> {
    fn clone(&self) -> Self {
        LockRequest {
            client: self.client.clone(),
            wanted: self.wanted.clone(),
            terms: self.terms.clone(),
            patience: self.patience,
            grants: PhantomData,
        }
    }
}

impl LockRequest<Guard> {
    /// Shares the lock with other shared requests, as a reader like [`crate::RwLock::read`].
    pub fn shared(mut self) -> Self {
        self.wanted.iter_mut().flatten().for_each(|wanted| wanted.kind = Kind::Read);
        self
    }
}

impl<G: Granted> LockRequest<G> {
    pub(crate) fn one(site: &Site, kind: Kind, limit: u32) -> Self {
        LockRequest::new(site.client(), site.absolute().map(|lock| vec![LockSpec { lock, kind, limit }]))
    }

    /// Makes every use of the request fail with `error`.
    pub(crate) fn refused(self, error: Error) -> Self {
        LockRequest { wanted: self.wanted.and(Err(error)), ..self }
    }

    pub(crate) fn new(client: &Client, wanted: Result<Vec<LockSpec>, Error>) -> Self {
        let terms = Terms::new(client);
        LockRequest { client: client.clone(), wanted, terms, patience: None, grants: PhantomData }
    }

    /// Sets the label for people who read the queue (default: [`crate::ClientBuilder::label`]).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.terms.label = label.into();
        self
    }

    /// Sets the name that the [`crate::Observer`] gets (default: `default`): one of a few, such as `orders`,
    /// and not one for each lock. A session has at most 100; further names count as `other`.
    pub fn metrics_name(mut self, name: impl Into<String>) -> Self {
        self.terms.metrics_name = Some(name.into());
        self
    }

    /// Adds text for people: the number of a job, a link.
    pub fn meta(mut self, meta: impl Into<String>) -> Self {
        self.terms.meta = meta.into();
        self
    }

    /// Sets a lock-delay: after an *expiry* of our session during the hold, the server grants the lock to no
    /// client for this time. The delay serves resources that cannot check fencing tokens, and lets our last
    /// writes arrive. A released lock is free at once. Needs a Rowlock server. (Clients of plain ZooKeeper's
    /// recipes on the same lock do not see the delay.) The maximum is a minute; the server refuses a longer
    /// delay (BadArguments). The delay ends with the lock's znode, and by
    /// [`Client::force_release`](crate::Client::force_release) of the lock's path with the token 0.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.terms.lock_delay = delay;
        self
    }

    /// Sets the least time between two grants, by the cluster's clock: after our grant the server grants the
    /// lock to no other client for this time, even after a release or the end of the session. The maximum is
    /// 31 days; the server refuses a longer time (BadArguments). A forced release ends the minimum hold:
    /// [`Client::force_release`](crate::Client::force_release) of the holder's claim, or of the lock's path
    /// with the token 0 after the holder has gone. So does deletion of the lock's znode. Needs a Rowlock
    /// server; clients of plain ZooKeeper's recipes on the same lock do not see the minimum hold.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.terms.min_hold = least;
        self
    }

    /// Applies the minimum hold only after a release by the guard. After a loss, or an earlier end of the
    /// session, the lock is free at once.
    pub fn min_hold_lapses(mut self) -> Self {
        self.terms.min_hold_lapses = true;
        self
    }

    /// Limits the hold. At this time after the client learned of the grant the guard is lost
    /// ([`crate::LostReason::MaxHold`]) and releases the lock; [`Guard::expiring`] warns in time. A Rowlock
    /// server revokes the lock even if this process does not run: at this time plus an eighth and the session
    /// timeout after the grant. Zero is refused.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.max_hold = Some(most);
        self
    }

    /// Sets the owner for deadlock detection. The default, no owner, takes no part in the detection. Any
    /// other owner needs a Rowlock server.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.terms.owner = owner;
        self
    }

    /// Limits the whole wait of [`LockRequest::lock`], including lost connections and all predecessors. Zero
    /// takes only a free lock, like [`LockRequest::try_lock`].
    pub fn timeout(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    fn wanted(&self) -> Result<&[LockSpec], Error> {
        if self.terms.max_hold.is_some_and(|most| most.is_zero()) {
            return Err(Error::InvalidArgument("a lock is held for longer than no time at all (max_hold)"));
        }
        self.wanted.as_deref().map_err(Clone::clone)
    }

    /// Waits for the lock, or for all of several locks: either all are granted or none is.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder, after leaving the queue.
    /// [`Error::SessionExpired`], [`Error::Closed`]: the session ended, and the request with the session.
    /// [`Error::PlaceLost`]: another client deleted our znode in the queue. [`Error::Deadlock`], with an
    /// owner. [`Error::LimitConflict`], for permits. [`Error::TooManyLocks`], [`Error::InvalidName`],
    /// [`Error::InvalidArgument`], [`Error::TooLarge`], [`Error::Unsupported`], [`Error::Rejected`] (NoAuth,
    /// quotas). A lost connection is no error here: the request keeps its queue position over reconnects.
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue, even with the request still under way.
    /// # Ordering
    /// The server assigns the queue position while handling the first request, in the order of the session.
    pub async fn lock(&self) -> Result<G, Error> {
        let wanted = self.wanted()?;
        let mut progress = Progress::new(self.measure(wanted));
        if self.patience == Some(Duration::ZERO) {
            let acquired = acquire(&self.client, wanted, &self.terms, false, &mut progress).await;
            return progress.end(acquired)?.map(G::of).ok_or_else(|| progress.timeout());
        }
        let attempt = acquire(&self.client, wanted, &self.terms, true, &mut progress);
        let acquired = match self.patience {
            None => attempt.await,
            Some(patience) => match time::timeout_at(time::now() + patience, attempt).await {
                Ok(acquired) => acquired,
                Err(_) => Err(progress.timeout()),
            },
        };
        // Who waits is never told that the lock is busy.
        progress.end(acquired)?.map(G::of).ok_or(Error::Protocol("busy, although we wait"))
    }

    fn measure(&self, wanted: &[LockSpec]) -> Option<WaitMeasure> {
        self.client.metering().begin(self.terms.metrics_name.as_deref(), || {
            let paths: Vec<&str> = wanted.iter().map(|wanted| self.client.within(&wanted.lock)).collect();
            paths.join(", ")
        })
    }

    /// Returns an owned future of [`LockRequest::lock`], to store or spawn. A future that was polled and is
    /// then neither polled again nor dropped keeps the queue position, and the lock after the grant, until
    /// the session ends.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`].
    /// # Cancel safety
    /// The cancel safety of [`LockRequest::lock`].
    #[expect(clippy::manual_async_fn, reason = "the signature promises Send and 'static")]
    pub fn lock_owned(self) -> impl Future<Output = Result<G, Error>> + Send + 'static
    where
        G: Send + 'static,
    {
        async move { self.lock().await }
    }

    /// Takes a free lock; otherwise returns `None` and leaves nothing behind. The cluster decides, not a read
    /// of a single server. Ignores the timeout.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`], but for the timeout.
    /// # Cancel safety
    /// The cancel safety of [`LockRequest::lock`].
    pub async fn try_lock(&self) -> Result<Option<G>, Error> {
        let wanted = self.wanted()?;
        let mut progress = Progress::new(self.measure(wanted));
        let acquired = acquire(&self.client, wanted, &self.terms, false, &mut progress).await;
        Ok(progress.end(acquired)?.map(G::of))
    }
}
