//! The locks, the election, counters, latches and barriers, for callers that block.

use std::time::Duration;

use rowlock_env::time;
use rowlock_proto::lock::Owner;

use super::handle::{Caller, Handle, calls};
use super::held::{
    Guard, Held, Hold, Leadership, MultiGuard, Permits, ReadGuard, ReentrantGuard, WriteGuard,
};
use crate::error::{Error, Kept, ReleaseError};
use crate::recipes::election::TransferError;
use crate::recipes::leaders::{Candidate, Leader};
use crate::recipes::request::Granted;

/// Asks for a lock (or several) with options, as [`crate::LockRequest`]; does nothing until `lock` or
/// `try_lock`.
pub type LockRequest<G = crate::Guard> = Handle<crate::LockRequest<G>>;
/// The fair lock: [`crate::Mutex`].
pub type Mutex = Handle<crate::Mutex>;
/// The lock that its owner may take again: [`crate::ReentrantMutex`]. For a thread, one owner per thread is
/// right.
pub type ReentrantMutex = Handle<crate::ReentrantMutex>;
/// Many readers or one writer, in the order of asking: [`crate::RwLock`].
pub type RwLock = Handle<crate::RwLock>;
/// A lock with a number of permits: [`crate::Semaphore`].
pub type Semaphore = Handle<crate::Semaphore>;
/// Several locks at once, all or none: [`crate::MultiLock`].
pub type MultiLock = Handle<crate::MultiLock>;
/// One of many leads, and all may know who: [`crate::Election`].
pub type Election = Handle<crate::Election>;

impl LockRequest<crate::Guard> {
    calls! { "LockRequest" {
        with fn shared() -> Self;
    } }
}

impl<G: Granted + Hold> LockRequest<G> {
    calls! { "LockRequest" {
        with fn label(label: impl Into<String>) -> Self;
        with fn meta(meta: impl Into<String>) -> Self;
        with fn metrics_name(name: impl Into<String>) -> Self;
        with fn lock_delay(delay: Duration) -> Self;
        with fn min_hold(least: Duration) -> Self;
        with fn min_hold_lapses() -> Self;
        with fn max_hold(most: Duration) -> Self;
        with fn owner(owner: Owner) -> Self;
        with fn timeout(patience: Duration) -> Self;
        wait fn lock() -> Held<G>, Held::new;
        /// Nothing is left behind after [`Error::NoAnswer`] either.
        ///
        ask fn try_lock() -> Option<Held<G>>, Held::maybe;
    } }
}

impl Mutex {
    calls! { "Mutex" {
        get fn path() -> &str;
        get fn server_path() -> String;
        get fn validate() -> Result<(), Error>;
        make fn request() -> LockRequest;
        wait fn lock() -> Guard, Held::new;
        wait fn lock_timeout(patience: Duration) -> Guard, Held::new;
        ask fn try_lock() -> Option<Guard>, Held::maybe;
    } }
}

impl ReentrantMutex {
    calls! { "ReentrantMutex" {
        get fn path() -> &str;
        wait fn lock(owner: Owner) -> ReentrantGuard, Held::new;
        wait fn lock_timeout(owner: Owner, patience: Duration) -> ReentrantGuard, Held::new;
        ask fn try_lock(owner: Owner) -> Option<ReentrantGuard>, Held::maybe;
    } }
}

impl RwLock {
    calls! { "RwLock" {
        get fn path() -> &str;
        make fn read_request() -> LockRequest<crate::ReadGuard>;
        make fn write_request() -> LockRequest<crate::WriteGuard>;
        wait fn read() -> ReadGuard, Held::new;
        wait fn read_timeout(patience: Duration) -> ReadGuard, Held::new;
        ask fn try_read() -> Option<ReadGuard>, Held::maybe;
        wait fn write() -> WriteGuard, Held::new;
        wait fn write_timeout(patience: Duration) -> WriteGuard, Held::new;
        ask fn try_write() -> Option<WriteGuard>, Held::maybe;
    } }
}

impl ReadGuard {
    /// Becomes the writer if no other client holds the lock or waits for it: see
    /// [`crate::ReadGuard::try_upgrade`].
    ///
    /// # Errors
    /// The guard and why.
    pub fn try_upgrade(self) -> Result<WriteGuard, Kept<ReadGuard>> {
        let Held { held, caller } = self;
        let upgraded = caller.wait(held.try_upgrade());
        upgraded
            .map(|held| Held::new(&caller, held))
            .map_err(|kept| kept.map(|held| Held::new(&caller, held)))
    }
}

impl WriteGuard {
    /// Goes on as a reader: see [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    /// The guard, which is as before, and why.
    pub fn downgrade(self) -> Result<ReadGuard, Kept<WriteGuard>> {
        let Held { held, caller } = self;
        let downgraded = caller.wait(held.downgrade());
        downgraded
            .map(|held| Held::new(&caller, held))
            .map_err(|kept| kept.map(|held| Held::new(&caller, held)))
    }
}

impl Semaphore {
    calls! { "Semaphore" {
        get fn path() -> &str;
        make fn request(count: u32) -> LockRequest<crate::Permits>;
        wait fn acquire() -> Permits, Held::new;
        wait fn acquire_many(count: u32) -> Permits, Held::new;
        wait fn acquire_timeout(count: u32, patience: Duration) -> Permits, Held::new;
        ask fn try_acquire() -> Option<Permits>, Held::maybe;
        ask fn try_acquire_many(count: u32) -> Option<Permits>, Held::maybe;
        ask fn available() -> u32;
    } }

    /// Changes how many permits there are, for everybody: see [`crate::Semaphore::resize`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been changed.
    pub fn resize(&mut self, limit: u32) -> Result<(), Error> {
        self.caller.ask(self.inner.resize(limit))
    }
}

impl MultiLock {
    calls! { "MultiLock" {
        get fn paths() -> impl Iterator<Item = &str>;
        make fn request() -> LockRequest<crate::MultiGuard>;
        wait fn lock() -> MultiGuard, Held::new;
        wait fn lock_timeout(patience: Duration) -> MultiGuard, Held::new;
        ask fn try_lock() -> Option<MultiGuard>, Held::maybe;
    } }
}

impl Election {
    calls! { "Election" {
        get fn path() -> &str;
        make fn of_owner(owner: Owner) -> Election;
        wait fn campaign(value: impl Into<String>) -> Leadership, Held::new;
        wait fn campaign_timeout(value: impl Into<String>, patience: Duration) -> Leadership, Held::new;
        ask fn try_campaign(value: impl Into<String>) -> Option<Leadership>, Held::maybe;
        ask fn leader() -> Option<Leader>;
        ask fn candidates() -> Vec<Candidate>;
    } }

    /// Follows changes of the leader. See [`crate::LeaderWatcher`].
    pub fn observe(&self) -> LeaderWatcher {
        LeaderWatcher { caller: self.caller.clone(), watcher: self.inner.observe(), ended: false }
    }
}

impl Leadership {
    calls! { "Leadership" {
        ask fn set_value(value: impl Into<String>) -> ();
    } }

    /// Gives the lead to a candidate who waits for it: see [`crate::Leadership::transfer_to`].
    ///
    /// # Errors
    /// As there.
    pub fn transfer_to(self, candidate: &Candidate) -> Result<(), TransferError<Leadership>> {
        let Held { held, caller } = self;
        let back = |held| Held::new(&caller, held);
        caller.wait(held.transfer_to(candidate)).map_err(|error| error.map(back))
    }

    /// Ends the lead, and waits until that is acknowledged.
    ///
    /// # Errors
    /// As [`Held::release`].
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.release()
    }
}

/// Tells who leads, whenever that changes: [`crate::LeaderWatcher`]. As an iterator it ends behind the first
/// error.
#[derive(Debug)]
pub struct LeaderWatcher {
    caller: Caller,
    watcher: crate::LeaderWatcher,
    ended: bool,
}

impl LeaderWatcher {
    /// Waits for news: at the first call at once.
    ///
    /// # Errors
    /// As [`crate::LeaderWatcher::next`].
    pub fn wait(&mut self) -> Result<Option<Leader>, Error> {
        self.caller.wait(self.watcher.next())
    }

    /// [`LeaderWatcher::wait`] for at most `patience`; the outer `None`: no news.
    ///
    /// # Errors
    /// As [`crate::LeaderWatcher::next`].
    pub fn wait_timeout(&mut self, patience: Duration) -> Result<Option<Option<Leader>>, Error> {
        let next = self.watcher.next();
        self.caller.wait(async { time::timeout(patience, next).await.ok().transpose() })
    }
}

impl Iterator for LeaderWatcher {
    type Item = Result<Option<Leader>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let news = self.wait();
        self.ended = news.is_err();
        Some(news)
    }
}

/// A number that all clients share: [`crate::AtomicCounter`].
pub type AtomicCounter = Handle<crate::AtomicCounter>;
/// Opens after a number of count-downs: [`crate::CountDownLatch`].
pub type CountDownLatch = Handle<crate::CountDownLatch>;
/// Holds everybody back while it is raised: [`crate::Barrier`].
pub type Barrier = Handle<crate::Barrier>;
/// A number of members begin together and end together: [`crate::DoubleBarrier`].
pub type DoubleBarrier = Handle<crate::DoubleBarrier>;

impl AtomicCounter {
    calls! { "AtomicCounter" {
        get fn path() -> &str;
        ask fn get() -> i64;
        ask fn add(delta: i64) -> i64;
        ask fn set(value: i64) -> ();
        ask fn compare_and_set(expected: i64, new: i64) -> bool;
        ask fn remove() -> ();
    } }
}

impl CountDownLatch {
    calls! { "CountDownLatch" {
        get fn path() -> &str;
        ask fn count() -> u32;
        ask fn count_down() -> u32;
        wait fn wait() -> ();
        wait fn wait_timeout(patience: Duration) -> bool;
        ask fn remove() -> ();
    } }
}

impl Barrier {
    calls! { "Barrier" {
        get fn path() -> &str;
        ask fn raise() -> ();
        ask fn remove() -> ();
        ask fn is_raised() -> bool;
        wait fn wait() -> ();
        wait fn wait_timeout(patience: Duration) -> bool;
    } }
}

impl DoubleBarrier {
    calls! { "DoubleBarrier" {
        get fn path() -> &str;
        wait fn enter() -> Membership, Membership::new;
        wait fn enter_timeout(patience: Duration) -> Option<Membership>, Membership::maybe;
    } }
}

/// A client inside a [`DoubleBarrier`]. Dropping it leaves without waiting for the others.
#[derive(Debug)]
#[must_use = "dropping it leaves the double barrier"]
pub struct Membership {
    member: crate::Membership,
    caller: Caller,
}

impl Membership {
    fn new(caller: &Caller, member: crate::Membership) -> Self {
        Membership { member, caller: caller.clone() }
    }

    fn maybe(caller: &Caller, member: Option<crate::Membership>) -> Option<Self> {
        member.map(|member| Membership::new(caller, member))
    }

    /// The path of our znode.
    pub fn path(&self) -> String {
        self.member.path()
    }

    /// Waits until all who entered with us leave too, or have died.
    ///
    /// # Errors
    /// As [`crate::Membership::leave`].
    pub fn leave(self) -> Result<(), Error> {
        self.caller.wait(self.member.leave())
    }

    /// [`Membership::leave`] that waits for the others for at most `patience` altogether; `false`: some are
    /// still inside, and we have left.
    ///
    /// # Errors
    /// As [`crate::Membership::leave`].
    pub fn leave_timeout(self, patience: Duration) -> Result<bool, Error> {
        self.caller.wait(self.member.leave_timeout(patience))
    }
}
