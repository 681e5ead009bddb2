//! The read-write lock, for callers that block.

use std::time::Duration;

use super::caller::Caller;
use super::held::{Held, ReadGuard, WriteGuard};
use super::locks::LockRequest;
use crate::error::{Error, Kept};

/// Many readers or one writer, in the order of asking: [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock {
    caller: Caller,
    lock: crate::RwLock,
}

impl RwLock {
    pub(super) fn new(caller: &Caller, lock: crate::RwLock) -> Self {
        RwLock { caller: caller.clone(), lock }
    }

    /// Asks for a reader's place with options.
    pub fn read_request(&self) -> LockRequest<crate::ReadGuard> {
        LockRequest::new(&self.caller, self.lock.read_request())
    }

    /// Asks for the writer's place with options.
    pub fn write_request(&self) -> LockRequest<crate::WriteGuard> {
        LockRequest::new(&self.caller, self.lock.write_request())
    }

    /// Waits for the lock as a reader.
    ///
    /// # Errors
    /// As [`crate::RwLock::read`].
    pub fn read(&self) -> Result<ReadGuard, Error> {
        self.read_request().lock()
    }

    /// Waits for the lock as the writer.
    ///
    /// # Errors
    /// As [`crate::RwLock::write`].
    pub fn write(&self) -> Result<WriteGuard, Error> {
        self.write_request().lock()
    }

    /// [`RwLock::read`] for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::RwLock::read_timeout`].
    pub fn read_timeout(&self, patience: Duration) -> Result<ReadGuard, Error> {
        self.read_request().timeout(patience).lock()
    }

    /// [`RwLock::write`] for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::RwLock::write_timeout`].
    pub fn write_timeout(&self, patience: Duration) -> Result<WriteGuard, Error> {
        self.write_request().timeout(patience).lock()
    }

    /// As a reader if nobody is in the way; `None` otherwise, and then nothing is left behind.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        self.read_request().try_lock()
    }

    /// As the writer if nobody is in the way; `None` otherwise, and then nothing is left behind.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.write_request().try_lock()
    }
}

impl ReadGuard {
    /// Becomes the writer, if nobody else holds the lock or waits for it: see
    /// [`crate::ReadGuard::try_upgrade`].
    ///
    /// # Errors
    /// The guard and why.
    pub fn try_upgrade(self) -> Result<WriteGuard, Kept<ReadGuard>> {
        let Held { held, caller } = self;
        match caller.wait(held.try_upgrade()) {
            Ok(held) => Ok(Held { held, caller }),
            Err(kept) => Err(kept.map(|held| Held { held, caller })),
        }
    }
}

impl WriteGuard {
    /// Goes on as a reader: see [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    /// The guard, which is as before, and why.
    pub fn downgrade(self) -> Result<ReadGuard, Kept<WriteGuard>> {
        let Held { held, caller } = self;
        match caller.wait(held.downgrade()) {
            Ok(held) => Ok(Held { held, caller }),
            Err(kept) => Err(kept.map(|held| Held { held, caller })),
        }
    }
}
