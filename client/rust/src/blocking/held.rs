//! [`Held`]: every kind of held lock, and all ways to learn of the loss.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rowlock_env::time::{self, Instant};
use rowlock_env::worker;
use rowlock_proto::FencingToken;
use rowlock_proto::lock::{Claim, Owner};

use super::handle::Caller;
use crate::error::{Error, LostReason, ReleaseError};
use crate::recipes::guard::WaitStats;
use crate::recipes::loss::Loss;
use crate::session::lock_states::Question;
use crate::transaction::Transaction;

/// Held lock. Dropping the guard releases the lock in the background, without blocking.
///
/// The lock can be lost, like every [`crate::Guard`]: the docs there explain the loss, and the reason to send
/// the token along.
#[must_use = "dropping it releases the lock"]
pub struct Held<G: Hold> {
    /// Declared before the caller: the release must precede the end of the session's thread.
    pub(super) held: G,
    pub(super) caller: Caller,
}

/// A mutex that is held.
pub type Guard = Held<crate::Guard>;
/// A share in an owner's hold of a reentrant mutex; clones make more.
pub type ReentrantGuard = Held<crate::ReentrantGuard>;
/// A read-write lock that is held, shared with other readers.
pub type ReadGuard = Held<crate::ReadGuard>;
/// A read-write lock that is held alone.
pub type WriteGuard = Held<crate::WriteGuard>;
/// Permits of a semaphore that are held.
pub type Permits = Held<crate::Permits>;
/// Several locks that are held.
pub type MultiGuard = Held<crate::MultiGuard>;
/// We lead. Dropping it resigns in the background.
pub type Leadership = Held<crate::Leadership>;

pub(super) mod sealed {
    use super::{Future, Loss, ReleaseError};

    /// An async guard, of one lock or of several.
    pub trait Hold {
        /// The news of the loss of each of its locks.
        fn losses(&self) -> Vec<Loss>;
        /// Releases what is held and waits for the answer.
        fn release_held(self) -> impl Future<Output = Result<(), ReleaseError>>;
    }

    /// An async guard of one lock.
    pub trait HoldOne: Hold {
        /// Returns the async guard inside.
        fn guard(&self) -> &crate::Guard;
    }
}

pub(super) use sealed::{Hold, HoldOne};

impl<G: Hold> Held<G> {
    pub(super) fn new(caller: &Caller, held: G) -> Self {
        Held { held, caller: caller.clone() }
    }

    pub(super) fn maybe(caller: &Caller, held: Option<G>) -> Option<Self> {
        held.map(|held| Held::new(caller, held))
    }

    pub(super) fn target(&self) -> &G {
        &self.held
    }

    /// Reports the hold as known here and now. Reads the clock, hence right also after a pause of the
    /// process.
    pub fn is_held(&self) -> bool {
        self.held.losses().iter().all(|loss| loss.reason().is_none())
    }

    /// Waits for the loss, for at most `patience`; `None`: the lock is still held.
    pub fn wait_lost(&self, patience: Duration) -> Option<LostReason> {
        let losses = self.held.losses();
        self.caller.wait(async { time::timeout(patience, first_of(&losses)).await.ok() })
    }

    /// Calls `callback` once on the loss of the lock, on a thread of its own; never on a release.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        let losses = self.held.losses();
        // Not awaited: it ends with the hold, which the news of the loss do not keep.
        drop(self.caller.background().spawn("rowlock-on-lost", async move {
            let reason = first_of(&losses).await;
            if reason != LostReason::Released {
                worker::run_blocking("rowlock-on-lost", move || callback(reason)).await;
            }
        }));
    }

    /// Releases the lock and waits for the acknowledgement, over reconnects if need be.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`]: it had been lost before. [`ReleaseError::Unknown`]: the session ended, or
    /// the operation timeout was over, before the acknowledgement; in the latter case the release goes on in
    /// the background.
    pub fn release(self) -> Result<(), ReleaseError> {
        let Held { held, caller } = self;
        let release = held.release_held();
        match caller.patience() {
            None => caller.wait(release),
            Some(patience) => caller
                .wait(async { time::timeout(patience, release).await.unwrap_or(Err(ReleaseError::Unknown)) }),
        }
    }
}

impl<G: HoldOne> Held<G> {
    /// Returns the fencing token of this grant. See [`crate::Guard::token`].
    pub fn token(&self) -> FencingToken {
        self.held.guard().token()
    }

    /// The path of our queue znode.
    pub fn path(&self) -> &str {
        self.held.guard().path()
    }

    /// Our queue znode and token.
    pub fn claim(&self) -> Claim {
        self.held.guard().claim()
    }

    /// Statistics of the wait.
    pub fn wait_stats(&self) -> WaitStats {
        self.held.guard().wait_stats()
    }

    /// Returns how long the lock stays valid without a further answer. See [`crate::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.held.guard().remaining()
    }

    /// Returns the end of the validity. See [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> Option<Instant> {
        self.held.guard().valid_until()
    }

    /// The news of the loss, for threads that work under this lock: [`Loss::reason`] needs no async code.
    pub fn loss(&self) -> Loss {
        self.held.guard().loss()
    }

    /// Newest request of another client for the lock, to check between two steps of the work:
    /// [`Questions::newest`](crate::Questions::newest) of [`crate::Guard::asked`].
    pub fn asked(&self) -> Option<Question> {
        self.held.guard().asked().newest()
    }

    /// Asks the cluster whether we hold the lock at this moment: see [`crate::Guard::check`].
    ///
    /// # Errors
    /// As there; [`Error::NoAnswer`].
    pub fn check(&self) -> Result<bool, Error> {
        self.caller.ask(self.held.guard().check())
    }

    /// Starts a transaction that takes effect only while this lock is held. See [`crate::Guard::txn`].
    pub fn txn(&self) -> Transaction {
        self.held.guard().txn()
    }
}

impl<G: Hold + fmt::Debug> fmt::Debug for Held<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.fmt(f)
    }
}

impl ReentrantGuard {
    /// Number of guards that share this hold, this guard included.
    pub fn shares(&self) -> usize {
        self.held.shares()
    }

    /// Returns the owner of the hold.
    pub fn owner(&self) -> Owner {
        self.held.owner()
    }
}

impl Permits {
    /// Returns how many permits are held.
    pub fn count(&self) -> u32 {
        self.held.count()
    }
}

impl MultiGuard {
    /// The guards of the single locks, in the order of their names as given, for their tokens. (Their `async`
    /// methods are for [`super::Client::run`].)
    pub fn guards(&self) -> &[crate::Guard] {
        self.held.guards()
    }
}

impl Clone for ReentrantGuard {
    fn clone(&self) -> Self {
        Held { held: self.held.clone(), caller: self.caller.clone() }
    }
}

/// One lock that is held, by a type that gives it back with `release`.
macro_rules! hold_one {
    ($guard:ty, $($as_guard:tt)*) => {
        impl Hold for $guard {
            fn losses(&self) -> Vec<Loss> {
                vec![self.loss()]
            }

            async fn release_held(self) -> Result<(), ReleaseError> {
                self.release().await
            }
        }

        impl HoldOne for $guard {
            fn guard(&self) -> &crate::Guard {
                $($as_guard)* self
            }
        }
    };
}

hold_one!(crate::Guard,);
hold_one!(crate::ReentrantGuard, &**);
hold_one!(crate::ReadGuard, &**);
hold_one!(crate::WriteGuard, &**);
hold_one!(crate::Permits, &**);
hold_one!(crate::Leadership, &**);

impl Hold for crate::MultiGuard {
    fn losses(&self) -> Vec<Loss> {
        self.guards().iter().map(crate::Guard::loss).collect()
    }

    async fn release_held(self) -> Result<(), ReleaseError> {
        self.release().await
    }
}

/// The first of several losses.
async fn first_of(losses: &[Loss]) -> LostReason {
    type Wait<'a> = Pin<Box<dyn Future<Output = LostReason> + Send + 'a>>;
    let mut waits: Vec<Wait<'_>> = losses.iter().map(|loss| Box::pin(loss.wait()) as Wait<'_>).collect();
    poll_fn(|cx| {
        for wait in &mut waits {
            if let Poll::Ready(reason) = wait.as_mut().poll(cx) {
                return Poll::Ready(reason);
            }
        }
        Poll::Pending
    })
    .await
}
