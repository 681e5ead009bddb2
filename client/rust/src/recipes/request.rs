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

mod sealed {
    use super::Guard;

    /// The result of a request.
    pub trait Granted: Sized {
        /// Makes it from the guards of all its locks; there is at least one.
        fn of(guards: Vec<Guard>) -> Self;
    }
}

pub(crate) use sealed::Granted;

impl Granted for Guard {
    fn of(guards: Vec<Guard>) -> Self {
        guards.into_iter().next().expect("one guard per lock, and a request has at least one lock")
    }
}

/// Asks for a lock (or several) with options. Made by `request()` of the handles; does nothing until
/// [`LockRequest::lock`] or [`LockRequest::try_lock`].
///
/// Options that need a server which keeps the queues itself say so; on plain ZooKeeper they are refused with
/// [`Error::Unsupported`] before anything is done.
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
    /// Shares the lock with others who ask so: a reader's place, as [`crate::RwLock::read`] takes it.
    pub fn shared(mut self) -> Self {
        self.wanted.iter_mut().flatten().for_each(|wanted| wanted.kind = Kind::Read);
        self
    }
}

impl<G: Granted> LockRequest<G> {
    /// Asks for one lock.
    pub(crate) fn one(site: &Site, kind: Kind, limit: u32) -> Self {
        LockRequest::new(site.client(), site.absolute().map(|lock| vec![LockSpec { lock, kind, limit }]))
    }

    /// The same, but every use of it fails like this.
    pub(crate) fn refused(self, error: Error) -> Self {
        LockRequest { wanted: self.wanted.and(Err(error)), ..self }
    }

    pub(crate) fn new(client: &Client, wanted: Result<Vec<LockSpec>, Error>) -> Self {
        let terms = Terms::new(client);
        LockRequest { client: client.clone(), wanted, terms, patience: None, grants: PhantomData }
    }

    /// Who this is, for people who look at the queue; otherwise the client's
    /// ([`crate::ClientBuilder::label`]).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.terms.label = label.into();
        self
    }

    /// Adds text for people: the number of a job, a link.
    pub fn meta(mut self, meta: impl Into<String>) -> Self {
        self.terms.meta = meta.into();
        self
    }

    /// Should our session *expire* while we hold the lock, it is granted to no client for this time: for
    /// resources that cannot check fencing tokens, and so must be left time for our last writes to arrive. A
    /// lock that is released is free at once. Needs a Rowlock server. (Clients of plain ZooKeeper's recipes
    /// on the same lock do not see the delay.) At most a minute: a longer one is refused (BadArguments). The
    /// delay ends with the lock's znode, and by [`Client::force_release`](crate::Client::force_release) of
    /// the lock's path with the token 0.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.terms.lock_delay = delay;
        self
    }

    /// From the grant on, no other place is granted the lock for this long, even if the guard is released or
    /// the session ends earlier: the least time between two grants, by the cluster's clock. At most 31 days,
    /// longer is refused (BadArguments). A forced release ends it:
    /// [`Client::force_release`](crate::Client::force_release) of the holder's place, or of the lock's path
    /// with the token 0 once the holder has gone. So does deletion of the lock's znode. Needs a Rowlock
    /// server; clients of plain ZooKeeper's recipes on the same lock do not see it.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.terms.min_hold = least;
        self
    }

    /// The minimum hold counts only if the guard is released. If it is lost, or the session ends first, the
    /// lock is free at once.
    pub fn min_hold_lapses(mut self) -> Self {
        self.terms.min_hold_lapses = true;
        self
    }

    /// How long the lock is held at most. After that time since we learned of the grant the guard is lost
    /// ([`crate::LostReason::MaxHold`]) and gives the lock back; [`Guard::expiring`] tells in time. A Rowlock
    /// server revokes the lock also when this process does not run: at this time plus the session timeout
    /// after the grant. Zero is refused.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.terms.max_hold = Some(most);
        self
    }

    /// The owner for deadlock detection. By default the request has none, and takes no
    /// part in it. Any other owner needs a Rowlock server.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.terms.owner = owner;
        self
    }

    /// How long [`LockRequest::lock`] waits altogether, lost connections and all predecessors included. With
    /// zero it does not wait: a free lock is taken, as by [`LockRequest::try_lock`].
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

    /// Waits for the lock (for all of them, if there are several: then either all are granted or none is).
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder, if a timeout was set; the queue is left
    /// then. [`Error::SessionExpired`], [`Error::Closed`]: the session ended; nothing is held and nothing
    /// waits any more. [`Error::PlaceLost`]: another client deleted our znode in the queue.
    /// [`Error::Deadlock`], with an owner. [`Error::LimitConflict`], for permits. [`Error::TooManyLocks`],
    /// [`Error::InvalidName`], [`Error::InvalidArgument`], [`Error::TooLarge`], [`Error::Unsupported`],
    /// [`Error::Rejected`] (NoAuth, quotas). A lost connection is no error here: the place in the queue is
    /// kept over reconnects.
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue, also when the request to enter it is still on its
    /// way.
    /// # Ordering
    /// The place in the queue is taken when the server handles the first request, in the order of the
    /// session.
    pub async fn lock(&self) -> Result<G, Error> {
        let wanted = self.wanted()?;
        let mut progress = Progress::new();
        if self.patience == Some(Duration::ZERO) {
            let granted = acquire(&self.client, wanted, &self.terms, false, &mut progress).await?;
            return granted.map(G::of).ok_or_else(|| progress.timeout());
        }
        let attempt = acquire(&self.client, wanted, &self.terms, true, &mut progress);
        let granted = match self.patience {
            None => attempt.await?,
            Some(patience) => match time::timeout_at(time::now() + patience, attempt).await {
                Ok(granted) => granted?,
                Err(_) => return Err(progress.timeout()),
            },
        };
        // Who waits is never told that the lock is busy.
        granted.map(G::of).ok_or(Error::Protocol("busy, although we wait"))
    }

    /// [`LockRequest::lock`] as a future of its own, which can be stored and spawned. One that was polled and
    /// is then neither polled again nor dropped keeps its place, and the lock once it is granted, for as long
    /// as the session lives.
    ///
    /// # Errors
    /// As [`LockRequest::lock`].
    /// # Cancel safety
    /// As [`LockRequest::lock`].
    #[expect(clippy::manual_async_fn, reason = "the signature promises Send and 'static")]
    pub fn lock_owned(self) -> impl Future<Output = Result<G, Error>> + Send + 'static
    where
        G: Send + 'static,
    {
        async move { self.lock().await }
    }

    /// Takes the lock if no other place is in the way; `None` otherwise, and then nothing is left behind.
    /// Whether it is free is decided by the cluster, not by a read of one server. Pays no regard to the
    /// timeout.
    ///
    /// # Errors
    /// As [`LockRequest::lock`], but for the timeout.
    /// # Cancel safety
    /// As [`LockRequest::lock`].
    pub async fn try_lock(&self) -> Result<Option<G>, Error> {
        let wanted = self.wanted()?;
        let granted = acquire(&self.client, wanted, &self.terms, false, &mut Progress::new()).await?;
        Ok(granted.map(G::of))
    }
}
