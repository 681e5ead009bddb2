//! [`ReentrantMutex`]: a mutex that its owner may take again while it has it.
//!
//! Counted here, not on the server: all that an owner takes of one lock is one place in its queue, shared by
//! its guards and given back by the last one. Who is the owner is said by a value, never guessed from the
//! thread or task: async work moves between threads, and one session serves many tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex as Lock, MutexGuard as LockGuard, PoisonError, Weak};
use std::time::Duration;

use rowlock_env::{rng, time};
use rowlock_proto::lock::Owner;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::guard::Guard;
use super::mutex::Mutex;
use super::request::LockRequest;
use crate::client::Client;
use crate::error::{Error, ReleaseError};

/// A lock that an [`Owner`] may take again while it has it.
///
/// It is the same lock as the [`Mutex`] of this name: both kinds of handles, and other clients, exclude each
/// other. On the server an owner has one place in the queue, however often it takes the lock; the lock is
/// given back when its last guard is. Owners count within this client: the same number in another session is
/// another contender. Different owners of one client queue behind each other like strangers, and so does
/// everything that is [`Owner::Unnamed`].
///
/// On a Rowlock server the owners also take part in deadlock detection: an owner that would wait for itself
/// over several locks is told so ([`Error::Deadlock`]).
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let job = client.new_owner();
/// let orders = client.reentrant_mutex("orders");
/// let outer = orders.lock(job).await?;
/// let inner = orders.lock(job).await?; // at once: no traffic
/// inner.release().await?; // still held
/// outer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    mutex: Mutex,
}

/// A share in an owner's hold of a lock. All shares of a hold have the same [`Guard`], with its token;
/// cloning makes one more. When the lock is lost, it is lost to all of them.
#[must_use = "dropping the last guard releases the lock"]
pub struct ReentrantGuard {
    /// Taken by release and drop.
    hold: Option<Arc<Guard>>,
    slot: SlotRef,
}

/// Holds and requests of the owners of one client.
#[derive(Default)]
pub(crate) struct Holds {
    slots: Lock<BTreeMap<Key, Arc<Slot>>>,
}

/// The path of a lock and an owner.
type Key = (String, Owner);

/// One owner and one lock.
struct Slot {
    /// Serializes acquires and releases of this owner, in the order of their calls.
    turn: Arc<Semaphore>,
    /// Invariant: a hold that cannot be upgraded any more has posted its release to the session's task, so
    /// that a new acquire is sent behind it. (Drops let go under this lock; a release keeps the turn.)
    hold: Lock<Weak<Guard>>,
}

/// Keeps a slot in the table of its client; the last one removes it.
struct SlotRef {
    /// Taken by the drop only.
    slot: Option<Arc<Slot>>,
    key: Key,
    holds: Arc<Holds>,
}

impl Client {
    /// The reentrant lock of this name. A handle only, no traffic; names as for [`Client::mutex`].
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex { mutex: self.mutex(name) }
    }

    /// The reentrant lock at this very path, as [`Client::mutex_at`].
    pub fn reentrant_mutex_at(&self, path: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex { mutex: self.mutex_at(path) }
    }

    /// A unique owner: for a task, a job, a request, whatever does one thing at a time. Owners
    /// with a name are made by [`Owner::named`].
    pub fn new_owner(&self) -> Owner {
        Owner::Named(rng::u64())
    }
}

impl ReentrantMutex {
    /// The path of its znode. (Of a name that cannot be used, the one that it would have.)
    pub fn path(&self) -> &str {
        self.mutex.path()
    }

    /// Takes the lock, or another share in it if `owner` has it already: then at once, without traffic.
    ///
    /// # Errors
    /// As [`Mutex::lock`]; [`Error::Deadlock`].
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue. If another task of the same owner waits for the
    /// same lock, it goes on with a place of its own.
    pub async fn lock(&self, owner: Owner) -> Result<ReentrantGuard, Error> {
        let slot = self.slot(owner)?;
        let turn = slot.turn().await?;
        match slot.share() {
            Some(guard) => Ok(guard),
            None => Ok(slot.hold(self.request(owner).await?.lock().await?, turn)),
        }
    }

    /// [`ReentrantMutex::lock`] as a future of its own, which can be stored and spawned.
    ///
    /// # Errors
    /// As [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// As [`ReentrantMutex::lock`].
    pub fn lock_owned(
        &self,
        owner: Owner,
    ) -> impl Future<Output = Result<ReentrantGuard, Error>> + Send + use<> {
        let mutex = self.clone();
        async move { mutex.lock(owner).await }
    }

    /// [`ReentrantMutex::lock`] for at most `patience` altogether.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last known position and holder; the queue is left then. Otherwise as
    /// [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// As [`ReentrantMutex::lock`].
    pub async fn lock_timeout(&self, owner: Owner, patience: Duration) -> Result<ReentrantGuard, Error> {
        let deadline = time::now() + patience;
        let slot = self.slot(owner)?;
        let turn = match time::timeout_at(deadline, slot.turn()).await {
            Ok(turn) => turn?,
            Err(time::Elapsed) => return Err(Error::Timeout { position: None, holder: None }),
        };
        match slot.share() {
            Some(guard) => Ok(guard),
            None => {
                let left = deadline.saturating_since(time::now());
                let request = self.request(owner).await?.timeout(left);
                Ok(slot.hold(request.lock().await?, turn))
            }
        }
    }

    /// Takes the lock if no other place is in the way, or another share if `owner` has it already; `None`
    /// otherwise, also while another task of the same owner is taking it or giving it back.
    ///
    /// # Errors
    /// As [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// As [`ReentrantMutex::lock`].
    pub async fn try_lock(&self, owner: Owner) -> Result<Option<ReentrantGuard>, Error> {
        let slot = self.slot(owner)?;
        let Ok(turn) = slot.slot().turn.clone().try_acquire_owned() else { return Ok(None) };
        if let Some(guard) = slot.share() {
            return Ok(Some(guard));
        }
        let granted = self.request(owner).await?.try_lock().await?;
        Ok(granted.map(|guard| slot.hold(guard, turn)))
    }

    async fn request(&self, owner: Owner) -> Result<LockRequest, Error> {
        let request = self.mutex.request();
        // Plain ZooKeeper detects no deadlocks, and refuses to try.
        let detects = self.client().extensions().await?.has_locks();
        Ok(if detects { request.owner(owner) } else { request })
    }

    fn client(&self) -> &Client {
        self.mutex.site().client()
    }

    fn slot(&self, owner: Owner) -> Result<SlotRef, Error> {
        let lock = self.mutex.site().absolute()?;
        let holds = self.client().holds();
        if owner == Owner::Unnamed {
            return Ok(SlotRef {
                slot: Some(Arc::new(Slot::new())),
                key: (lock, owner),
                holds: holds.clone(),
            });
        }
        let key = (lock, owner);
        Ok(holds.slot(key))
    }
}

impl Holds {
    /// The slot of this key; made, if there is none.
    fn slot(self: &Arc<Self>, key: Key) -> SlotRef {
        let slot = self.slots().entry(key.clone()).or_insert_with(|| Arc::new(Slot::new())).clone();
        SlotRef { slot: Some(slot), key, holds: self.clone() }
    }

    fn slots(&self) -> LockGuard<'_, BTreeMap<Key, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn new() -> Self {
        Slot { turn: Arc::new(Semaphore::new(1)), hold: Lock::new(Weak::new()) }
    }

    fn current(&self) -> LockGuard<'_, Weak<Guard>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotRef {
    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("only the drop takes the slot")
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        // Turns are never closed.
        self.slot().turn.clone().acquire_owned().await.map_err(|_| Error::Closed)
    }

    /// A share of what the owner holds, if it does.
    fn share(&self) -> Option<ReentrantGuard> {
        let hold = self.slot().current().upgrade()?;
        let guard = ReentrantGuard { hold: Some(hold), slot: self.clone() };
        // Dropped, if it is lost: the owner may ask again, and those who have shares in the old hold know.
        guard.is_held().then_some(guard)
    }

    /// Makes a granted lock the owner's hold.
    fn hold(self, guard: Guard, turn: OwnedSemaphorePermit) -> ReentrantGuard {
        let hold = Arc::new(guard);
        *self.slot().current() = Arc::downgrade(&hold);
        drop(turn);
        ReentrantGuard { hold: Some(hold), slot: self }
    }
}

impl Clone for SlotRef {
    fn clone(&self) -> Self {
        SlotRef { slot: self.slot.clone(), key: self.key.clone(), holds: self.holds.clone() }
    }
}

impl Drop for SlotRef {
    fn drop(&mut self) {
        let mut slots = self.holds.slots();
        // Let go of under the lock: of two that go at one time, the second one finds itself to be the last.
        let ours = self.slot.take().map(|slot| Arc::as_ptr(&slot));
        let is_last = |slot: &Arc<Slot>| ours == Some(Arc::as_ptr(slot)) && Arc::strong_count(slot) == 1;
        if slots.get(&self.key).is_some_and(is_last) {
            slots.remove(&self.key);
        }
    }
}

impl ReentrantGuard {
    /// How many guards share this hold, this one included.
    pub fn shares(&self) -> usize {
        self.hold.as_ref().map_or(0, Arc::strong_count)
    }

    /// Returns the owner of the hold.
    pub fn owner(&self) -> Owner {
        self.slot.key.1
    }

    /// Gives this share back; the last one gives the lock back, and waits until that is acknowledged.
    ///
    /// # Errors
    /// As [`Guard::release`]. [`ReleaseError::NotHeld`] also for a share that is not the last.
    /// # Cancel safety
    /// Dropping the future gives the share back.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        if !self.is_held() {
            return Err(ReleaseError::NotHeld);
        }
        // This owner does not ask again until the release is acknowledged.
        let _turn = tokio::select! {
            biased;
            turn = self.slot.turn() => turn,
            _ = self.lost() => return Err(ReleaseError::NotHeld),
        };
        let hold =
            self.hold.take().expect("only release and drop take the hold, and release consumes the guard");
        let is_held = hold.is_held();
        match Arc::into_inner(hold) {
            Some(guard) => guard.release().await,
            None if is_held => Ok(()),
            None => Err(ReleaseError::NotHeld),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        self.hold.as_ref().expect("only release and drop take the hold, and both end the guard")
    }
}

impl Clone for ReentrantGuard {
    fn clone(&self) -> Self {
        ReentrantGuard { hold: self.hold.clone(), slot: self.slot.clone() }
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard").field("hold", &self.hold).field("owner", &self.owner()).finish()
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        // Under the lock, so that the release is posted before the hold is seen to be gone.
        let _current = self.slot.slot().current();
        self.hold = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn a_slot_whose_last_users_go_at_one_time_is_forgotten() {
        const ROUNDS: u64 = 5_000;
        let (holds, gate) = (Arc::<Holds>::default(), Barrier::new(2));
        let goes = |side: usize| {
            for round in 0..ROUNDS {
                let slot = holds.slot(("/l".to_owned(), Owner::Named(round)));
                gate.wait();
                drop(slot);
                gate.wait();
                assert!(side == 1 || holds.slots().is_empty(), "in round {round}");
                gate.wait();
            }
        };
        thread::scope(|threads| {
            threads.spawn(|| goes(0));
            goes(1);
        });
    }
}
