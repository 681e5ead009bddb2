//! [`Leadership`]: a held lead, the guard of a lock plus the leader's own calls.

use std::ops::Deref;

use bytes::Bytes;
use rowlock_proto::{ErrorCode, path};

use super::{Candidate, Election, view};
use crate::error::{Error, Kept, ReleaseError};
use crate::recipes::guard::Guard;
use crate::recipes::plain::insist;

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
    pub(super) fn new(guard: Guard, election: Election) -> Self {
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
