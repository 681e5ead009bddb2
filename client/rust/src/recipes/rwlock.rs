//! [`RwLock`]: many readers or a single writer, in the order of the requests.
//!
//! The lock is fair: a reader waits behind an earlier writer, hence writers do not starve; adjacent readers
//! hold together. On plain ZooKeeper the recipe and the names are Curator's, except that each client waits
//! for the nearest blocking znode.
//!
//! On a Rowlock server a conversion to another mode (downgrade, upgrade) is a single request. On plain
//! ZooKeeper a conversion takes a second znode, and is possible only when no other client can come in
//! between: the client refuses an unsafe conversion.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::rare::{self, Rare};
use rowlock_env::{decides, time};
use rowlock_proto::lock::{Claim, QueuePosition};
use rowlock_proto::{FencingToken, Request, Response};

use super::guard::{Grant, Guard, Seat};
use super::names::{self, Kind};
use super::place::Place;
use super::request::{Granted, LockRequest};
use super::served::Served;
use super::site::{self, Site};
use crate::client::Client;
use crate::error::{Error, Kept, LostReason, ReleaseError};
use crate::session::lock_states::{LockState, LockStateCell};

/// Handle of a read-write lock: a name on a session. Making a handle does nothing.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let lock = client.rwlock("prices");
/// let reader = lock.read().await?;
/// match reader.try_upgrade().await {
///     Ok(writer) => writer.release().await?, // we were alone
///     Err(kept) => kept.guard.release().await?, // another client reads, or waits
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    site: Site,
}

/// Lock shared with other readers. Dereferences to [`Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    guard: Guard,
}

/// Lock held alone. Dereferences to [`Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard {
    guard: Guard,
}

impl Client {
    /// The read-write lock of this name, below the lock base. A mutex of the same name is the same lock, and
    /// counts as a writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::named(self, site::Kind::Lock, name.as_ref()) }
    }

    /// The read-write lock at this path, for sharing with programs that use other ZooKeeper clients
    /// (Curator's `InterProcessReadWriteLock`, kazoo's `ReadLock` and `WriteLock`).
    pub fn rwlock_at(&self, path: impl AsRef<str>) -> RwLock {
        RwLock { site: Site::at(self, path.as_ref()) }
    }
}

impl RwLock {
    /// Path of the lock's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Requests the lock as a reader, with options.
    pub fn read_request(&self) -> LockRequest<ReadGuard> {
        LockRequest::one(&self.site, Kind::Read, 0)
    }

    /// Requests the lock as a writer, with options.
    pub fn write_request(&self) -> LockRequest<WriteGuard> {
        LockRequest::one(&self.site, Kind::Write, 0)
    }

    /// Waits until no earlier writer is left.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of the requests, adjacent readers together.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.read_request().lock().await
    }

    /// Waits until no earlier holder or waiter is left.
    ///
    /// # Errors
    /// The errors of [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    /// # Ordering
    /// Granted in the order of the requests.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.write_request().lock().await
    }

    /// Returns an owned future of [`RwLock::read`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`RwLock::read`].
    /// # Cancel safety
    /// The cancel safety of [`RwLock::read`].
    pub fn read_owned(&self) -> impl Future<Output = Result<ReadGuard, Error>> + Send + use<> {
        self.read_request().lock_owned()
    }

    /// [`RwLock::read`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn read_timeout(&self, patience: Duration) -> Result<ReadGuard, Error> {
        self.read_request().timeout(patience).lock().await
    }

    /// Returns an owned future of [`RwLock::write`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`RwLock::write`].
    /// # Cancel safety
    /// The cancel safety of [`RwLock::write`].
    pub fn write_owned(&self) -> impl Future<Output = Result<WriteGuard, Error>> + Send + use<> {
        self.write_request().lock_owned()
    }

    /// [`RwLock::write`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`LockRequest::lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn write_timeout(&self, patience: Duration) -> Result<WriteGuard, Error> {
        self.write_request().timeout(patience).lock().await
    }

    /// Takes the lock as a reader if free at once; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.read_request().try_lock().await
    }

    /// Takes the lock as a writer if free at once; leaves nothing behind otherwise.
    ///
    /// # Errors
    /// The errors of [`LockRequest::try_lock`].
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.write_request().try_lock().await
    }
}

impl ReadGuard {
    /// Converts to the writer if no other client holds the lock or waits; returns the guard otherwise. (Two
    /// readers that both waited for the conversion would wait for ever, hence only a try.) The writer gets a
    /// new and higher token.
    ///
    /// # Errors
    /// The guard and the cause: [`Error::Busy`], with the guard unchanged; [`Error::NotHeld`], the end of the
    /// session, or an error with unknown outcome, after which the lock is lost.
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn try_upgrade(self) -> Result<WriteGuard, Kept<ReadGuard>> {
        let upgraded = upgrade(self.guard).await;
        upgraded.map(|guard| WriteGuard { guard }).map_err(|kept| kept.map(|guard| ReadGuard { guard }))
    }

    /// Releases the read lock, as [`Guard::release`].
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl WriteGuard {
    /// Converts to a reader, with no other holder in between: the readers waiting directly behind join, a
    /// waiting writer does not. On Rowlock the token stays the same; on plain ZooKeeper the client enters the
    /// queue a second time, and fails ([`Error::Unsupported`]) if a writer is waiting.
    ///
    /// # Errors
    /// The guard and the cause: [`Error::Unsupported`], with the guard unchanged; [`Error::NotHeld`], the end
    /// of the session, or an error with unknown outcome, after which the lock is lost.
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn downgrade(self) -> Result<ReadGuard, Kept<WriteGuard>> {
        let downgraded = downgrade(self.guard).await;
        downgraded.map(|guard| ReadGuard { guard }).map_err(|kept| kept.map(|guard| WriteGuard { guard }))
    }

    /// Releases the write lock, as [`Guard::release`].
    ///
    /// # Errors
    /// The errors of [`Guard::release`].
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for ReadGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Deref for WriteGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Granted for ReadGuard {
    fn of(guards: Vec<Guard>) -> Self {
        ReadGuard { guard: Guard::of(guards) }
    }
}

impl Granted for WriteGuard {
    fn of(guards: Vec<Guard>) -> Self {
        WriteGuard { guard: Guard::of(guards) }
    }
}

const ODD: Error = Error::Protocol("a convert was answered with something else");

/// Converts from exclusive to shared, with no other holder in between. Returns the guard if the conversion
/// fails.
async fn downgrade(mut guard: Guard) -> Result<Guard, Kept<Guard>> {
    if !guard.is_held() {
        return Err(Kept::new(guard, Error::NotHeld));
    }
    let result = match guard.seat() {
        Some(Seat::Served(place)) => {
            let prefix = place.prefix().to_owned();
            convert(&guard, Kind::Read, prefix, Vec::new()).await
        }
        _ => return downgrade_by_watches(guard).await,
    };
    match result {
        Ok(_) => {
            guard.set_kind(Kind::Read);
            Ok(guard)
        }
        // A conversion to reader is never blocked: a refusal means that the place is not held.
        Err(Error::NotHeld | Error::Busy) => {
            guard.loss().declare(LostReason::Deleted);
            Err(Kept::new(guard, Error::NotHeld))
        }
        Err(error) => Err(kept(guard, error)),
    }
}

/// Ends the hold after a conversion with unknown outcome: the mode is unknown, and the drop of the guard
/// releases the lock.
fn kept(guard: Guard, error: Error) -> Kept<Guard> {
    if decides!("conversion-may-have-happened", error.may_have_happened()) {
        if guard.is_held() {
            rare::taken(Rare::ConversionUnknown);
        }
        guard.loss().declare(LostReason::Released);
    }
    Kept::new(guard, error)
}

/// Converts from shared to exclusive, if no other client holds the lock or waits for it.
async fn upgrade(mut guard: Guard) -> Result<Guard, Kept<Guard>> {
    if !guard.is_held() {
        return Err(Kept::new(guard, Error::NotHeld));
    }
    let Some(Seat::Served(place)) = guard.seat() else { return upgrade_by_watches(guard).await };
    let names = guard.client().config().queue_names;
    let prefix = names::queue_prefix(names, Kind::Write, &names::random_id());
    let mut next = match Served::new(guard.client(), place.lock().to_owned(), prefix.clone()) {
        Ok(next) => next,
        Err(error) => return Err(Kept::new(guard, error)),
    };
    // From here on either place may be there; dropping them leaves both.
    next.expect();
    let cell = LockStateCell::new();
    let ungranted_at = Some(time::now());
    // The old place ends; the hold does not.
    let hold = guard.take_hold();
    let held = match convert(&guard, Kind::Write, prefix, vec![cell.clone()]).await {
        Ok(claim) => claim,
        Err(error) => {
            guard.observe(hold);
            if matches!(error, Error::NotHeld | Error::Busy) {
                next.forget();
            }
            return Err(kept(guard, error));
        }
    };
    // The question to the old place goes on at the new one.
    if let Some(question) = guard.loss().newest_question() {
        cell.ask(question);
    }
    // The server has taken the old znode away.
    if let Some(Seat::Served(place)) = guard.seat_mut() {
        place.forget();
    }
    let (stats, max_hold) = (guard.wait_stats(), guard.max_hold());
    let grant = Grant { claim: held, kind: Kind::Write, cell: cell.clone(), stats, max_hold, ungranted_at };
    match Guard::new(guard.client(), Seat::Served(next), grant) {
        Ok(mut upgraded) => {
            upgraded.observe(hold);
            Ok(upgraded)
        }
        // The new place is lost already, by force or with the session. So is the old one.
        Err(error) => {
            let reason = if let LockState::Lost(reason) = cell.get() { reason } else { LostReason::Deleted };
            guard.loss().declare(reason);
            Err(Kept::new(guard, if error == Error::PlaceLost { Error::NotHeld } else { error }))
        }
    }
}

/// Converts the hold and returns the new claim.
///
/// # Errors
/// [`Error::Busy`], [`Error::NotHeld`]: nothing was changed.
async fn convert(
    guard: &Guard,
    to: Kind,
    prefix: String,
    cells: Vec<Arc<LockStateCell>>,
) -> Result<Claim, Error> {
    let claim = guard.absolute_claim().clone();
    let request = Request::Convert { claim, mode: to.mode(), prefix };
    let reply = guard.client().submit_followed(request, None, cells).await?.await?;
    match reply.response {
        Response::QueuePositions(positions) => match positions.into_iter().next() {
            Some(QueuePosition::Held(claim)) => Ok(claim),
            Some(QueuePosition::Busy { .. }) => Err(Error::Busy),
            Some(QueuePosition::Absent) => Err(Error::NotHeld),
            _ => Err(ODD),
        },
        _ => Err(ODD),
    }
}

/// Enters the queue a second time, behind the guard's znode. Returns the queue as listed after the entry.
async fn second_place(guard: &Guard, parent: &str, kind: Kind) -> Result<(Place, Guarded), Error> {
    let client = guard.client();
    let prefix = names::queue_prefix(client.config().queue_names, kind, &names::random_id());
    let mut place = Place::new(client.clone(), parent.to_owned(), prefix, Bytes::new())?;
    let (stat, _) = place.enter().await?;
    let queue = place.queue().await?;
    let claim = Claim { path: place.path().into(), token: FencingToken(stat.czxid.0) };
    Ok((place, Guarded { claim, queue }))
}

struct Guarded {
    claim: Claim,
    queue: super::queue::Queue,
}

async fn upgrade_by_watches(mut guard: Guard) -> Result<Guard, Kept<Guard>> {
    let Some(Seat::Watched(old)) = guard.seat() else { return Err(Kept::new(guard, Error::NotHeld)) };
    let (parent, name) = (old.parent().to_owned(), old.name().to_owned());
    let (place, second) = match second_place(&guard, &parent, Kind::Write).await {
        Ok(second) => second,
        Err(error) => return Err(Kept::new(guard, error)),
    };
    // We are alone: later places stand behind the new one, so the old one may go.
    if !second.queue.is_just(&name, place.name()) {
        let left = place.leave().await;
        return Err(Kept::new(guard, left.err().unwrap_or(Error::Busy)));
    }
    match swap(&mut guard, place, second.claim, Kind::Write).await {
        Some(upgraded) => Ok(upgraded),
        None => Err(Kept::new(guard, Error::NotHeld)),
    }
}

async fn downgrade_by_watches(mut guard: Guard) -> Result<Guard, Kept<Guard>> {
    let Some(Seat::Watched(old)) = guard.seat() else { return Err(Kept::new(guard, Error::NotHeld)) };
    let (parent, name) = (old.parent().to_owned(), old.name().to_owned());
    let (place, second) = match second_place(&guard, &parent, Kind::Read).await {
        Ok(second) => second,
        Err(error) => return Err(Kept::new(guard, error)),
    };
    // A writer in between would be granted the lock before our new place.
    if !second.queue.only_readers_between(&name, place.name()) {
        let left = place.leave().await;
        return Err(Kept::new(
            guard,
            left.err().unwrap_or(Error::Unsupported("a downgrade before waiting writers")),
        ));
    }
    match swap(&mut guard, place, second.claim, Kind::Read).await {
        Some(downgraded) => Ok(downgraded),
        None => Err(Kept::new(guard, Error::NotHeld)),
    }
}

/// Leaves the guard's queue znode in favor of the new znode. `None`: the session has ended.
async fn swap(guard: &mut Guard, place: Place, claim: Claim, kind: Kind) -> Option<Guard> {
    let Some(Seat::Watched(old)) = guard.seat_mut().take() else { return None };
    let hold = guard.take_hold();
    guard.loss().declare(LostReason::Released);
    old.leave().await.ok()?;
    let cell = LockStateCell::new();
    cell.advance(LockState::Held { since: time::now() });
    let (stats, max_hold) = (guard.wait_stats(), guard.max_hold());
    let grant = Grant { claim, kind, cell, stats, max_hold, ungranted_at: None };
    let mut swapped = Guard::new(guard.client(), Seat::Watched(place), grant).ok()?;
    swapped.observe(hold);
    Some(swapped)
}
