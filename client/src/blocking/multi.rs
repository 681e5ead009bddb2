//! Several locks at once, for callers that block.

use std::time::Duration;

use super::caller::Caller;
use super::held::MultiGuard;
use super::locks::LockRequest;
use crate::error::Error;

/// Several locks at once, all or none: [`crate::MultiLock`].
#[derive(Clone, Debug)]
pub struct MultiLock {
    caller: Caller,
    locks: crate::MultiLock,
}

impl MultiLock {
    pub(super) fn new(caller: &Caller, locks: crate::MultiLock) -> Self {
        MultiLock { caller: caller.clone(), locks }
    }

    /// Asks with options.
    pub fn request(&self) -> LockRequest<crate::MultiGuard> {
        LockRequest::new(&self.caller, self.locks.request())
    }

    /// Waits for all of the locks.
    ///
    /// # Errors
    /// As [`crate::MultiLock::lock`].
    pub fn lock(&self) -> Result<MultiGuard, Error> {
        self.request().lock()
    }

    /// [`MultiLock::lock`] for at most `patience` altogether.
    ///
    /// # Errors
    /// As [`crate::MultiLock::lock_timeout`].
    pub fn lock_timeout(&self, patience: Duration) -> Result<MultiGuard, Error> {
        self.request().timeout(patience).lock()
    }

    /// All of the locks if all are free; nothing is left behind otherwise.
    ///
    /// # Errors
    /// As [`LockRequest::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.request().try_lock()
    }
}

impl MultiGuard {
    /// The guards of the single locks, in the order of their names as given, for their tokens. (Their `async`
    /// methods are for [`super::Client::run`].)
    pub fn guards(&self) -> &[crate::Guard] {
        self.held.guards()
    }
}
