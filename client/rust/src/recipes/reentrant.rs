//! [`ReentrantMutex`]: a mutex that the owner may take again while holding the mutex.
//!
//! The client counts, not the server: all shares of an owner in a lock are a single queue znode, shared by
//! the guards and released by the last guard. A value identifies the owner, never the thread or task: async
//! work moves between threads, and a session serves many tasks.

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

/// Lock that an [`Owner`] may take again while holding the lock.
///
/// The lock is the [`Mutex`] of the same name: both kinds of handles, and other clients, exclude each other.
/// On the server an owner has a single queue znode for all shares, released with the last guard. Owners count
/// within this client: the same number in another session is another contender. Different owners of a client
/// queue behind each other like strangers, as does every [`Owner::Unnamed`].
///
/// On a Rowlock server the owners also take part in deadlock detection: an owner that would wait for itself
/// over several locks gets [`Error::Deadlock`].
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

/// Share in an owner's hold of a lock. All shares of a hold have the same [`Guard`] and token; cloning adds a
/// share. The loss of the lock ends all shares.
#[must_use = "dropping the last guard releases the lock"]
pub struct ReentrantGuard {
    /// Taken by release and drop.
    hold: Option<Arc<Guard>>,
    slot: SlotRef,
}

/// Holds and requests of the owners of a client.
#[derive(Default)]
pub(crate) struct Holds {
    slots: Lock<BTreeMap<Key, Arc<Slot>>>,
}

/// The path of a lock and an owner.
type Key = (String, Owner);

/// State of an owner and a lock.
struct Slot {
    /// Serializes acquires and releases of this owner, in the order of their calls.
    turn: Arc<Semaphore>,
    /// Invariant: a hold that can no longer be upgraded has posted its release to the session's task, and a
    /// new acquire is sent behind the release. (Drops let go under this lock; a release keeps the turn.)
    hold: Lock<Weak<Guard>>,
}

/// Keeps a slot in the client's table; the last reference removes the slot.
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

    /// The reentrant lock at this path, like [`Client::mutex_at`].
    pub fn reentrant_mutex_at(&self, path: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex { mutex: self.mutex_at(path) }
    }

    /// Returns a unique owner, for a task, a job or a request: anything that does a single thing at a time.
    /// [`Owner::named`] makes owners with a name.
    pub fn new_owner(&self) -> Owner {
        Owner::Named(rng::u64())
    }
}

impl ReentrantMutex {
    /// Path of the lock's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.mutex.path()
    }

    /// Takes the lock; an `owner` that holds the lock gets another share at once, without traffic.
    ///
    /// # Errors
    /// The errors of [`Mutex::lock`]; [`Error::Deadlock`].
    /// # Cancel safety
    /// Dropping the future at any point leaves the queue. Another waiting task of the same owner goes on with
    /// a request of its own.
    pub async fn lock(&self, owner: Owner) -> Result<ReentrantGuard, Error> {
        let slot = self.slot(owner)?;
        let turn = slot.turn().await?;
        match slot.share() {
            Some(guard) => Ok(guard),
            None => Ok(slot.hold(self.request(owner).await?.lock().await?, turn)),
        }
    }

    /// Returns an owned future of [`ReentrantMutex::lock`], to store or spawn.
    ///
    /// # Errors
    /// The errors of [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`ReentrantMutex::lock`].
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
    /// [`Error::Timeout`] with the last known position and holder, after leaving the queue. Otherwise the
    /// errors of [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`ReentrantMutex::lock`].
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

    /// Takes a free lock, or another share for an `owner` that holds the lock; otherwise returns `None`, also
    /// while another task of the same owner takes or releases the lock.
    ///
    /// # Errors
    /// The errors of [`ReentrantMutex::lock`].
    /// # Cancel safety
    /// The cancel safety of [`ReentrantMutex::lock`].
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
        let holds = self.client().shared_table::<Holds>();
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
    /// Returns the slot of this key; makes a missing slot.
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

    /// Returns a share of the owner's hold, if any.
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
    /// Number of guards that share this hold, this guard included.
    pub fn shares(&self) -> usize {
        self.hold.as_ref().map_or(0, Arc::strong_count)
    }

    /// Returns the owner of the hold.
    pub fn owner(&self) -> Owner {
        self.slot.key.1
    }

    /// Releases this share; the last share releases the lock, and waits for the acknowledgement.
    ///
    /// # Errors
    /// The errors of [`Guard::release`]. [`ReleaseError::NotHeld`] also for a share other than the last.
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
