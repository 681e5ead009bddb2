//! The semaphore, for callers that block.

use std::time::Duration;

use super::caller::Caller;
use super::held::Permits;
use super::locks::LockRequest;
use crate::error::Error;

/// So many at a time: [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore {
    caller: Caller,
    semaphore: crate::Semaphore,
}

impl Semaphore {
    pub(super) fn new(caller: &Caller, semaphore: crate::Semaphore) -> Self {
        Semaphore { caller: caller.clone(), semaphore }
    }

    /// Asks for permits with options.
    pub fn request(&self, count: u32) -> LockRequest<crate::Permits> {
        LockRequest::new(&self.caller, self.semaphore.request(count))
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Permits, Error> {
        self.acquire_many(1)
    }

    /// Waits for so many permits, which come together.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_many`].
    pub fn acquire_many(&self, count: u32) -> Result<Permits, Error> {
        self.request(count).lock()
    }

    /// [`Semaphore::acquire_many`] for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::Semaphore::acquire_timeout`].
    pub fn acquire_timeout(&self, count: u32, patience: Duration) -> Result<Permits, Error> {
        self.request(count).timeout(patience).lock()
    }

    /// One permit if one is free and nobody waits; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_acquire(&self) -> Result<Option<Permits>, Error> {
        self.try_acquire_many(1)
    }

    /// So many permits if they are free and nobody waits; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_acquire_many(&self, count: u32) -> Result<Option<Permits>, Error> {
        self.request(count).try_lock()
    }

    /// Changes how many permits there are, for everybody: see [`crate::Semaphore::resize`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`]: it may have been changed.
    pub fn resize(&mut self, limit: u32) -> Result<(), Error> {
        self.caller.ask(self.semaphore.resize(limit))
    }

    /// How many permits are free at this moment: see [`crate::Semaphore::available`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn available(&self) -> Result<u32, Error> {
        self.caller.ask(self.semaphore.available())
    }
}

impl Permits {
    /// How many.
    pub fn count(&self) -> u32 {
        self.held.count()
    }
}
