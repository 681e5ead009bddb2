//! [`Election`]: a single leader among candidates, visible to all clients.
//!
//! A campaign is a request in a lock's queue; the data of the queue znode are the candidate's value; the
//! lock's holder leads. The lead has all properties of the lock: strict order, rising tokens, and a timely
//! report of the loss.
//!
//! A transfer cannot move the lead to a candidate in the middle of the queue: the queue is strictly first
//! come, first served, and the successor's token is below the tokens of the earlier candidates, which a
//! storage may have seen already. Instead the leader writes a note and releases the lock
//! ([`Leadership::transfer_to`]). The candidates in between are granted the lock one after the other, read
//! the note, and queue again at the end, with new tokens, until the successor's turn. The successor removes
//! the note. Tokens thus never go back. A candidate that finds a note about a missing candidate removes the
//! note.
//!
//! The layout is Curator's `LeaderSelector` and kazoo's `Election`: their candidates queue with ours, ignore
//! notes, and lead on their turn.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Owner;
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, Request, path};

use super::guard::Guard;
use super::leaders::{self, Candidate, Leader, LeaderWatcher};
use super::mutex::Mutex;
use super::queue::Queue;
use super::request::LockRequest;
use super::site::{Kind, Site, insist, pause_or_fail};
use crate::client::Client;
use crate::error::{Error, Kept, ReleaseError};
use crate::znode::{self, Znode};

/// Handle of an election: a name on a session. Making a handle does nothing.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let election = client.election("scheduler");
/// let leadership = election.campaign("host-7:8080").await?;
/// let token = leadership.token(); // goes along with every write of the leader
/// leadership.run(async { /* dropped at the moment the lead is lost */ let _ = token; }).await?;
/// leadership.resign().await?;
///
/// // Anybody, without being a candidate:
/// let mut watcher = election.observe();
/// while let Ok(leader) = watcher.next().await {
///     println!("{:?} leads", leader.map(|leader| leader.value));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    /// Single pointer, since every held lead keeps a copy.
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    site: Site,
    mutex: Mutex,
    /// Owner of the candidates' requests.
    owner: Owner,
}

impl Client {
    /// The election of this name. Names as for [`Client::mutex`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self, Site::named(self, Kind::Election, name.as_ref()))
    }

    /// The election at this path, for sharing with Curator's `LeaderSelector` or kazoo's `Election`. The data
    /// of the znode there belong to the election.
    pub fn election_at(&self, path: impl AsRef<str>) -> Election {
        Election::new(self, Site::at(self, path.as_ref()))
    }
}

impl Election {
    fn new(client: &Client, site: Site) -> Self {
        // A path that cannot be used makes the mutex fail; the site says why, and is asked first.
        let mutex = client.mutex_at(site.path());
        Election { parts: Arc::new(Parts { site, mutex, owner: Owner::Unnamed }) }
    }

    /// The same election for candidates in deadlock detection, like [`crate::LockRequest::owner`]. Only
    /// Rowlock detects deadlocks: on other servers a campaign with an owner is [`Error::Unsupported`].
    #[must_use]
    pub fn of_owner(&self, owner: Owner) -> Election {
        let Parts { site, mutex, .. } = &*self.parts;
        Election { parts: Arc::new(Parts { site: site.clone(), mutex: mutex.clone(), owner }) }
    }

    pub(super) fn site(&self) -> &Site {
        &self.parts.site
    }

    /// Path of the election's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site().path()
    }

    /// Waits for the lead. Other clients see `value` from the start of the wait: a name, an address.
    ///
    /// # Errors
    /// The errors of [`Mutex::lock`].
    /// # Cancel safety
    /// Dropping the future at any point ends the candidacy.
    /// # Ordering
    /// The first to campaign leads first, except for transfers.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, Error> {
        self.stand(&value.into(), None).await
    }

    /// Returns an owned future of [`Election::campaign`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`Election::campaign`].
    /// # Cancel safety
    /// The cancel safety of [`Election::campaign`].
    pub fn campaign_owned(
        &self,
        value: String,
    ) -> impl Future<Output = Result<Leadership, Error>> + Send + use<> {
        let election = self.clone();
        async move { election.campaign(value).await }
    }

    /// [`Election::campaign`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder, after the end of the candidacy. Otherwise
    /// the errors of [`Election::campaign`].
    /// # Cancel safety
    /// The cancel safety of [`Election::campaign`].
    pub async fn campaign_timeout(
        &self,
        value: impl Into<String>,
        patience: Duration,
    ) -> Result<Leadership, Error> {
        self.stand(&value.into(), Some(time::now() + patience)).await
    }

    /// Takes a free lead unless a candidate waits; otherwise returns `None` and leaves nothing behind.
    ///
    /// # Errors
    /// The errors of [`Election::campaign`].
    /// # Cancel safety
    /// The cancel safety of [`Election::campaign`].
    pub async fn try_campaign(&self, value: impl Into<String>) -> Result<Option<Leadership>, Error> {
        self.site().usable()?;
        let Some(guard) = self.request(&value.into()).try_lock().await? else { return Ok(None) };
        if decides!("leadership-is-ours", !self.is_for_another(&guard).await?) {
            return Ok(Some(Leadership::new(guard, self.clone())));
        }
        self.make_way(guard).await;
        Ok(None)
    }

    /// Returns the leader as of a moment after this call began. `None`: no leader, or a transfer is under
    /// way.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Rejected`] (NoAuth); the end of the session.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        loop {
            let (queue, successor) = self.read_queue().await?;
            let Some(first) = queue.first().filter(|_| leaders::leads(&queue, successor.as_deref())) else {
                return Ok(None);
            };
            // Gone in between: look again.
            if let Some(leader) = self.candidate(first).await? {
                return Ok(Some(leader));
            }
        }
    }

    /// Lists the candidates in queue order, the leader first; not older than this call.
    ///
    /// # Errors
    /// The errors of [`Election::leader`].
    /// # Cancel safety
    /// Cancel safe.
    pub async fn candidates(&self) -> Result<Vec<Candidate>, Error> {
        let (queue, _) = self.read_queue().await?;
        let (client, parent) = (self.site().client(), self.site().usable()?);
        let mut reads = Vec::with_capacity(queue.len());
        for name in queue {
            let path = path::join(parent, &name);
            let read = Request::GetData(PathWatch { path: client.absolute(&path), watch: false });
            reads.push((name, client.submit(read, None).await?));
        }
        let mut candidates = Vec::with_capacity(reads.len());
        for (name, read) in reads {
            let candidate = match read.await.and_then(znode::data) {
                Ok(znode) => Some(Candidate::new(path::join(parent, &name), &znode)),
                Err(Error::Rejected(ErrorCode::NoNode)) => None,
                Err(error) => {
                    pause_or_fail(error).await?;
                    self.candidate(&name).await?
                }
            };
            candidates.extend(candidate);
        }
        Ok(candidates)
    }

    /// Follows the leader. Observers are no candidates; a change of the leader wakes each observer once, the
    /// coming and going of other candidates does not.
    pub fn observe(&self) -> LeaderWatcher {
        LeaderWatcher::new(self.clone())
    }

    async fn stand(&self, value: &str, deadline: Option<Instant>) -> Result<Leadership, Error> {
        self.site().usable()?;
        loop {
            let request = self.request(value);
            let guard = match deadline.map(|deadline| deadline.saturating_since(time::now())) {
                None => request.lock().await?,
                // Without time to wait, a free lead can still be taken.
                Some(Duration::ZERO) => {
                    let busy = Error::Timeout { position: None, holder: None };
                    request.try_lock().await?.ok_or(busy)?
                }
                Some(left) => request.timeout(left).lock().await?,
            };
            if !self.is_for_another(&guard).await? {
                return Ok(Leadership::new(guard, self.clone()));
            }
            // To the end of the queue.
            self.make_way(guard).await;
        }
    }

    fn request(&self, value: &str) -> LockRequest {
        self.parts.mutex.request().label(value).owner(self.parts.owner)
    }

    /// Releases the lock for a successor. After a failed release the next request fails and reports the
    /// cause.
    async fn make_way(&self, guard: Guard) {
        if let Err(error) = guard.release().await {
            tracing::debug!(%error, "making way for a successor");
        }
    }

    /// Checks for a note that names another waiting candidate as leader. Removes a note that names us or a
    /// missing candidate.
    ///
    /// An existing note is always seen: the leader wrote the note before releasing the lock, and the read is
    /// fresh.
    async fn is_for_another(&self, guard: &Guard) -> Result<bool, Error> {
        let (client, path) = (self.site().client(), self.site().usable()?);
        loop {
            let Znode { data, stat } = match self.site().fresh(|| client.get(path)).await {
                // Then our place is gone too, as the guard will say.
                Err(Error::Rejected(ErrorCode::NoNode)) => return Ok(false),
                read => read?,
            };
            let Some(successor) = leaders::successor(data.as_ref()) else { return Ok(false) };
            let is_us = successor == path::name(guard.path());
            if !is_us && self.candidate(&successor).await?.is_some() {
                return Ok(true);
            }
            let note_down = guard.txn().set(path, Some(leaders::data(None)), Some(stat.version));
            match client.commit(note_down).await {
                // Not ours any more, as the guard will say.
                Ok(_) | Err(Error::TransactionRejected { index: 0, .. }) => return Ok(false),
                Err(Error::TransactionRejected {
                    code: ErrorCode::BadVersion | ErrorCode::NoNode, ..
                }) => {}
                Err(error) => pause_or_fail(error).await?,
            }
        }
    }

    /// Reads the queue in order, and the successor of a note.
    async fn read_queue(&self) -> Result<(Vec<String>, Option<String>), Error> {
        let (client, path) = (self.site().client(), self.site().usable()?);
        let read = || async {
            let (data, names) = tokio::join!(biased; client.get(path), client.get_children(path));
            Ok((data?.data, names?.names))
        };
        match self.site().fresh(read).await {
            Ok((data, names)) => Ok((Queue::new(names).into_names(), leaders::successor(data.as_ref()))),
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok((Vec::new(), None)),
            Err(error) => Err(error),
        }
    }

    async fn candidate(&self, name: &str) -> Result<Option<Candidate>, Error> {
        let path = path::join(self.site().usable()?, name);
        match insist(|| self.site().client().get(&path)).await {
            Ok(znode) => Ok(Some(Candidate::new(path.clone(), &znode))),
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Proof of our lead. Dropping the leadership resigns in the background.
///
/// A leadership can be lost, like every lock: [`Guard`]'s `token`, `lost`, `loss`, `run`, `check`, `txn` are
/// all available.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
    election: Election,
}

/// Failure to transfer a lead by [`Leadership::transfer_to`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError<L = Leadership> {
    /// No transfer took place: [`Error::NotWaiting`]; [`Error::NotHeld`]: we no longer lead; or another
    /// refusal of the note's write.
    #[error(transparent)]
    Kept(#[from] Kept<L>),
    /// The note was written, but the servers did not acknowledge the release. We no longer lead.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

impl Leadership {
    fn new(guard: Guard, election: Election) -> Self {
        Leadership { guard, election }
    }

    /// Changes our value, visible to other clients.
    ///
    /// # Errors
    /// [`Error::NotHeld`]: we no longer lead. [`Error::Rejected`] (NoAuth); the end of the session.
    /// # Cancel safety
    /// A dropped future may or may not have changed the value.
    pub async fn set_value(&self, value: impl Into<String>) -> Result<(), Error> {
        if !self.is_held() {
            return Err(Error::NotHeld);
        }
        let value = Bytes::from(value.into());
        // No other client writes there, so repeating does no harm.
        let set = || self.election.site().client().set(self.path(), Some(value.clone()), None);
        match insist(set).await {
            Ok(_) => Ok(()),
            Err(Error::Rejected(ErrorCode::NoNode)) => Err(Error::NotHeld),
            Err(error) => Err(error),
        }
    }

    /// Transfers the lead to a waiting candidate ([`Election::candidates`]), and returns when we no longer
    /// lead.
    ///
    /// The candidates in between make way: each is granted the lock for a moment, and queues again behind the
    /// successor, at a few round trips each. Until then the election has no leader, or a candidate of another
    /// library that ignores notes. If the successor leaves in the meantime, the first candidate in the queue
    /// leads.
    ///
    /// # Errors
    /// [`TransferError`].
    /// # Cancel safety
    /// A dropped future resigns, and may or may not have named the successor.
    pub async fn transfer_to(self, candidate: &Candidate) -> Result<(), TransferError> {
        let election = self.election.path();
        let waits_here = path::parent(&candidate.path) == Some(election) && candidate.path != self.path();
        if !waits_here {
            return Err(Kept::new(self, Error::NotWaiting).into());
        }
        let note = Some(leaders::data(Some(candidate.name())));
        let leave_note = self.txn().check(&candidate.path, None).set(election, note, None);
        // Only a leader leaves notes, so repeating does no harm.
        match insist(|| self.election.site().client().commit(leave_note.clone())).await {
            Ok(_) => Ok(self.guard.release().await?),
            Err(error) => {
                let error = match error {
                    Error::TransactionRejected { index: 0, .. } => Error::NotHeld,
                    Error::TransactionRejected { index: 1, .. } => Error::NotWaiting,
                    error => error,
                };
                Err(Kept::new(self, error).into())
            }
        }
    }

    /// Ends the lead, and waits for the acknowledgement.
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The cancel safety of [`Guard::release`].
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    /// [`Leadership::resign`], under the name of every other lock.
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The cancel safety of [`Guard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.resign().await
    }
}

impl<L> TransferError<L> {
    #[cfg(feature = "blocking")]
    pub(crate) fn map<M>(self, wrap: impl FnOnce(L) -> M) -> TransferError<M> {
        match self {
            TransferError::Kept(kept) => TransferError::Kept(kept.map(wrap)),
            TransferError::Release(error) => TransferError::Release(error),
        }
    }
}

impl Deref for Leadership {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}
