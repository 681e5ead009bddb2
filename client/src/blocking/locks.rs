//! The locks, for callers that block.

use std::time::Duration;

use rowlock_proto::lock::Owner;

use super::caller::Caller;
use super::held::{Guard, Held, Hold, ReentrantGuard};
use crate::error::Error;
use crate::recipes::request::Granted;

/// Asks for a lock (or several) with options, as [`crate::LockRequest`]; does nothing until
/// [`LockRequest::lock`] or [`LockRequest::try_lock`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is locked"]
pub struct LockRequest<G = crate::Guard> {
    caller: Caller,
    request: crate::LockRequest<G>,
}

impl<G> Clone for LockRequest<G> {
    fn clone(&self) -> Self {
        LockRequest { caller: self.caller.clone(), request: self.request.clone() }
    }
}

impl LockRequest<crate::Guard> {
    /// See [`crate::LockRequest::shared`].
    pub fn shared(self) -> Self {
        LockRequest { request: self.request.shared(), ..self }
    }
}

impl<G: Granted + Hold> LockRequest<G> {
    pub(super) fn new(caller: &Caller, request: crate::LockRequest<G>) -> Self {
        LockRequest { caller: caller.clone(), request }
    }

    /// See [`crate::LockRequest::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        LockRequest { request: self.request.label(label), ..self }
    }

    /// See [`crate::LockRequest::meta`].
    pub fn meta(self, meta: impl Into<String>) -> Self {
        LockRequest { request: self.request.meta(meta), ..self }
    }

    /// See [`crate::LockRequest::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        LockRequest { request: self.request.lock_delay(delay), ..self }
    }

    /// See [`crate::LockRequest::max_hold`].
    pub fn max_hold(self, most: Duration) -> Self {
        LockRequest { request: self.request.max_hold(most), ..self }
    }

    /// See [`crate::LockRequest::owner`].
    pub fn owner(self, owner: Owner) -> Self {
        LockRequest { request: self.request.owner(owner), ..self }
    }

    /// How long [`LockRequest::lock`] waits altogether, lost connections and all predecessors included.
    pub fn timeout(self, patience: Duration) -> Self {
        LockRequest { request: self.request.timeout(patience), ..self }
    }

    /// Waits for the lock, or for all of them.
    ///
    /// # Errors
    /// As [`crate::LockRequest::lock`].
    pub fn lock(&self) -> Result<Held<G>, Error> {
        self.caller.wait(self.request.lock()).map(|held| Held::new(&self.caller, held))
    }

    /// Takes the lock if nobody is in the way; `None` otherwise, and then nothing is left behind.
    ///
    /// # Errors
    /// As [`crate::LockRequest::try_lock`]; [`Error::NoAnswer`], and then nothing is left behind either.
    pub fn try_lock(&self) -> Result<Option<Held<G>>, Error> {
        let held = self.caller.ask(self.request.try_lock())?;
        Ok(held.map(|held| Held::new(&self.caller, held)))
    }
}

/// The fair lock: [`crate::Mutex`].
#[derive(Clone, Debug)]
pub struct Mutex {
    caller: Caller,
    mutex: crate::Mutex,
}

impl Mutex {
    pub(super) fn new(caller: &Caller, mutex: crate::Mutex) -> Self {
        Mutex { caller: caller.clone(), mutex }
    }

    /// Asks with options: `mutex.request().max_hold(..).meta(..).lock()`.
    pub fn request(&self) -> LockRequest {
        LockRequest::new(&self.caller, self.mutex.request())
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// As [`crate::Mutex::lock`].
    pub fn lock(&self) -> Result<Guard, Error> {
        self.request().lock()
    }

    /// Waits for the lock for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::Mutex::lock_timeout`].
    pub fn lock_timeout(&self, patience: Duration) -> Result<Guard, Error> {
        self.request().timeout(patience).lock()
    }

    /// Takes the lock if nobody holds it or waits for it; `None` otherwise, and then nothing is left behind.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.request().try_lock()
    }
}

/// The lock that its owner may take again: [`crate::ReentrantMutex`]. For a thread, one owner per thread is
/// right.
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    caller: Caller,
    mutex: crate::ReentrantMutex,
}

impl ReentrantMutex {
    pub(super) fn new(caller: &Caller, mutex: crate::ReentrantMutex) -> Self {
        ReentrantMutex { caller: caller.clone(), mutex }
    }

    /// Takes the lock, or another share in it if `owner` has it already.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::lock`].
    pub fn lock(&self, owner: Owner) -> Result<ReentrantGuard, Error> {
        self.caller.wait(self.mutex.lock(owner)).map(|held| Held::new(&self.caller, held))
    }

    /// [`ReentrantMutex::lock`] for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::ReentrantMutex::lock_timeout`].
    pub fn lock_timeout(&self, owner: Owner, patience: Duration) -> Result<ReentrantGuard, Error> {
        let held = self.caller.wait(self.mutex.lock_timeout(owner, patience))?;
        Ok(Held::new(&self.caller, held))
    }

    /// See [`crate::ReentrantMutex::try_lock`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`], and then nothing is left behind.
    pub fn try_lock(&self, owner: Owner) -> Result<Option<ReentrantGuard>, Error> {
        let held = self.caller.ask(self.mutex.try_lock(owner))?;
        Ok(held.map(|held| Held::new(&self.caller, held)))
    }
}
