//! [`Leadership`]: a lead that is held. It is the guard of a lock, and what only a leader does.

use std::ops::Deref;

use bytes::Bytes;
use rowlock_proto::{ErrorCode, path};

use super::{Candidate, Election, view};
use crate::error::{Error, Kept, ReleaseError};
use crate::recipes::guard::Guard;
use crate::recipes::plain::insist;

/// We lead. Dropping it resigns in the background.
///
/// It can be lost, as every lock: all of [`Guard`]'s `token`, `lost`, `loss`, `run`, `check`, `txn` are here.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
    election: Election,
}

/// Why [`Leadership::transfer_to`] did not hand over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError<L = Leadership> {
    /// Nothing was handed over: [`Error::NotWaiting`]; [`Error::NotHeld`]: we did not lead any more; or what
    /// else the write of the note was refused for.
    #[error(transparent)]
    Kept(#[from] Kept<L>),
    /// The note was left, but the release was not acknowledged. We do not lead any more.
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

impl Leadership {
    pub(super) fn new(guard: Guard, election: Election) -> Self {
        Leadership { guard, election }
    }

    /// Changes what others see of us.
    ///
    /// # Errors
    /// [`Error::NotHeld`]: we do not lead any more. [`Error::Rejected`] (NoAuth); the end of the session.
    /// # Cancel safety
    /// A dropped future may or may not have changed it.
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

    /// Gives the lead to a candidate who waits for it ([`Election::candidates`]), and is done when we do not
    /// lead any more.
    ///
    /// The candidates in between make way: each is granted the lock for a moment, and queues again behind
    /// the successor. That takes a few round trips for each. Until then there is no leader, or a candidate
    /// of another library that does not know of successors. Should the successor go in the meantime, the
    /// first in the queue leads.
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
        let note = Some(view::data(Some(candidate.name())));
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

    /// Ends the lead, and waits until that is acknowledged.
    ///
    /// # Errors
    /// As [`Guard::release`].
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }

    /// [`Leadership::resign`], under the name it has for every other lock.
    ///
    /// # Errors
    /// As [`Guard::release`].
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.resign().await
    }
}

impl<L> TransferError<L> {
    /// The same, with the leadership as `wrap` makes it.
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
