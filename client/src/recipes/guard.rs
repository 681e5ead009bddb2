//! [`Guard`]: a lock that is held, and all the ways to learn that it is not any more.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::mutant::{self, Mutant};
use rowlock_env::task::Task;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Claim;
use rowlock_proto::{FencingToken, Request, Response};

use super::loss::Loss;
use super::names::Kind;
use super::place::Place;
use super::questions::Questions;
use super::sentinel;
use super::served::{self, Served};
use crate::client::Client;
use crate::error::{Error, LockLost, LostReason, ReleaseError};
use crate::session::lock_states::{LockState, LockStateCell};
use crate::transaction::Transaction;

/// How a lock was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// The place in the queue at entry; 0: the lock was free.
    pub position: usize,
    /// How often we were woken. On Rowlock at most once, by the grant; on plain ZooKeeper at most once per
    /// predecessor that came to its end, which for a waiter in an orderly queue is once as well.
    pub wakeups: u32,
    /// Time from the call to the grant.
    pub waited: Duration,
}

/// A held lock. Dropping it gives the lock back in the background: no call waits for the answer, and who
/// takes the next lock at once usually has both requests in one packet. [`Guard::release`] waits, and tells
/// what became of it.
///
/// A lock of this kind can be **lost**: when the session ends (no heartbeat was acknowledged in time), when
/// its znode is deleted, its release is forced, or its maximum hold or the time that a question gave is over.
/// [`Guard::lost`],
/// [`Guard::loss`] and [`Guard::run`] tell, before another client can be granted the lock, as long as the
/// clocks' rates differ by less than 5 %. What they cannot do is stop work that is already on its way to some
/// storage: send the [`Guard::token`] along with it, and let the storage refuse tokens that are lower than
/// one it has seen; or, if the storage is the coordinator itself, write with [`Guard::txn`].
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    held: Box<GuardState>,
}

struct GuardState {
    client: Client,
    /// Taken by release; its drop leaves the queue.
    seat: Option<Seat>,
    claim: Claim,
    kind: Kind,
    stats: WaitStats,
    since: Instant,
    max_hold: Option<Duration>,
    loss: Loss,
    sentinels: Vec<Task<()>>,
}

/// Our place in the queue, by who keeps the queue.
pub(crate) enum Seat {
    Served(Served),
    /// The clients do, by watches.
    Watched(Place),
}

/// What makes a place a held one.
pub(crate) struct Grant {
    pub claim: Claim,
    pub kind: Kind,
    pub cell: Arc<LockStateCell>,
    pub stats: WaitStats,
    pub max_hold: Option<Duration>,
    /// A moment at which the server had not granted it yet; `None`: only this client ends the maximum
    /// hold.
    pub ungranted_at: Option<Instant>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("path", &self.path())
            .field("token", &self.held.claim.token)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Invariant: the server (or, on plain ZooKeeper, a list of the queue) has just said that the place holds
    /// the lock. That is not enough when the session has ended meanwhile.
    pub(super) fn new(client: &Client, seat: Seat, grant: Grant) -> Result<Self, Error> {
        let Grant { claim, kind, cell, stats, max_hold, ungranted_at } = grant;
        if client.shared().lost().is_some() {
            return Err(client.vitals().ending.map_or(Error::SessionExpired, |ending| ending.error()));
        }
        let LockState::Held { since } = cell.get() else { return Err(Error::PlaceLost) };
        let since = latest_start(since, ungranted_at, client.vitals().timeout);
        let loss = Loss::new(client.shared().clone(), cell, max_hold.map(|most| since + most));
        let path = client.within(&claim.path);
        tracing::debug!(path, token = %claim.token, position = stats.position, waited = ?stats.waited, "granted");
        let sentinels = sentinel::post(client, &seat, &claim, &loss, max_hold.map(|most| (since, most)));
        let (client, seat) = (client.clone(), Some(seat));
        let held = GuardState { client, seat, claim, kind, stats, since, max_hold, loss, sentinels };
        Ok(Guard { held: Box::new(held) })
    }

    /// Larger than that of every earlier holder of this lock: the position of the creation of our queue
    /// znode.
    pub fn token(&self) -> FencingToken {
        if mutant::is(Mutant::TokenFromName)
            && let Some(Ok(number)) = self.path().rsplit('-').next().map(str::parse)
        {
            return FencingToken(number);
        }
        self.held.claim.token
    }

    /// The path of our queue znode.
    pub fn path(&self) -> &str {
        self.held.client.within(&self.held.claim.path)
    }

    /// Our queue znode and token, as others name them ([`Client::force_release`]).
    pub fn claim(&self) -> Claim {
        Claim { path: self.path().into(), token: self.token() }
    }

    /// How the lock was waited for.
    pub fn wait_stats(&self) -> WaitStats {
        self.held.stats
    }

    /// Until when the lock is certainly ours unless it is taken away: the session's local deadline,
    /// which each acknowledged heartbeat moves on, or the end of the maximum hold. Monotonic clock,
    /// conservative. `None`: it is lost.
    pub fn valid_until(&self) -> Option<Instant> {
        self.held.loss.valid_until()
    }

    /// How long the lock is certainly ours from now on, unless it is taken away, and unless a heartbeat
    /// moves that on: [`Guard::valid_until`] as a time to plan with. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.valid_until().map_or(Duration::ZERO, |until| until.saturating_since(time::now()))
    }

    /// The lock is ours, as far as can be known here and now. Looks at the clock, so it is right also after
    /// the process was paused.
    pub fn is_held(&self) -> bool {
        self.held.loss.reason().is_none()
    }

    /// The news of the loss, for tasks that work under this lock.
    pub fn loss(&self) -> Loss {
        self.held.loss.clone()
    }

    /// Waits until the lock is lost. Never returns while it is held.
    ///
    /// # Cancel safety
    /// Cancel safe: for `select!` beside the work.
    pub async fn lost(&self) -> LostReason {
        self.held.loss.wait().await
    }

    /// The questions of other clients whether we give the lock back ([`Client::ask_holders`]), also those
    /// that have come already. With a deadline, the lock is lost at that moment: [`Guard::lost`] tells, and
    /// the cluster takes it from a holder that keeps it nevertheless.
    ///
    /// On plain ZooKeeper there are none.
    pub fn asked(&self) -> Questions {
        Questions::new(self.loss())
    }

    /// Waits until four fifths of the maximum hold ([`crate::LockRequest::max_hold`]) are over: time to come
    /// to an end. Never returns if there is none.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self) {
        match self.held.max_hold {
            Some(most) => time::alarm(sentinel::warning_at(self.held.since, most)).await,
            None => std::future::pending().await,
        }
    }

    /// Runs `work` while the lock is held; drops it at the moment of the loss.
    ///
    /// # Errors
    /// [`LockLost`], also when `work` would have been done just then.
    /// # Cancel safety
    /// That of `work`; the lock stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LockLost> {
        self.held.loss.run(work).await
    }

    /// Asks the cluster whether we hold the lock at this moment (linearizable, a round trip): for the last
    /// step before something that cannot be taken back. `false` is final.
    ///
    /// # Errors
    /// The end of the session, and what reads are refused for.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn check(&self) -> Result<bool, Error> {
        if !self.is_held() {
            return Ok(false);
        }
        let held = match self.held.seat {
            Some(Seat::Served(_)) => match self.verify().await {
                // The session has moved to a server that does not keep queues.
                Err(Error::Unsupported(_)) => self.look().await?,
                held => held?,
            },
            _ => self.look().await?,
        };
        if !held {
            self.held.loss.declare(LostReason::Deleted);
        }
        Ok(held && self.is_held())
    }

    async fn verify(&self) -> Result<bool, Error> {
        if mutant::is(Mutant::VerifyByBelief) {
            return Ok(true);
        }
        let request = Request::Verify([self.held.claim.clone()].into());
        match self.held.client.ask(request).await?.response {
            Response::Held(held) => Ok(held[..] == [true]),
            _ => Err(Error::Protocol("a verify was answered with something else")),
        }
    }

    /// Plain ZooKeeper: our znode is there, on a server that has seen everything.
    async fn look(&self) -> Result<bool, Error> {
        loop {
            let result = match self.held.client.sync(self.path()).await {
                Ok(()) => self.held.client.exists(self.path()).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(stat) => return Ok(stat.is_some_and(|stat| stat.czxid.0 == self.token().0)),
                Err(Error::ConnectionLoss) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A transaction that takes effect only while our queue znode is there: writes to the coordinator itself
    /// that a holder of before cannot make. Its first operation, of index 0, is that check; when the lock is
    /// lost, [`Client::commit`] says [`Error::TransactionRejected`] with index 0.
    pub fn txn(&self) -> Transaction {
        Transaction::new().check(self.path(), None)
    }

    /// Gives the lock back and waits until that is acknowledged, over reconnects if need be.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`]: it had been lost before. [`ReleaseError::Unknown`]: the session ended
    /// before the acknowledgement.
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.stop_watching();
        if !self.is_held() {
            return Err(ReleaseError::NotHeld);
        }
        self.held.loss.declare(LostReason::Released);
        let result = match self.held.seat.take() {
            Some(Seat::Watched(place)) => place.leave().await,
            Some(Seat::Served(mut place)) => {
                let released = served::release(&self.held.client, vec![self.held.claim.clone()]).await;
                if released.is_ok() {
                    place.forget();
                }
                released.map(|held| held == [true])
            }
            None => unreachable!("only release takes the seat, and it consumes the guard"),
        };
        match result {
            Ok(true) => Ok(()),
            Ok(false) => Err(ReleaseError::NotHeld),
            Err(error) if error.is_session_end() || error == Error::ConnectionLoss => {
                Err(ReleaseError::Unknown)
            }
            Err(error) => {
                tracing::warn!(path = self.path(), %error, "release refused; it is repeated in the background");
                Err(ReleaseError::Unknown)
            }
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.held.client
    }

    pub(super) fn kind(&self) -> Kind {
        self.held.kind
    }

    pub(super) fn seat(&self) -> Option<&Seat> {
        self.held.seat.as_ref()
    }

    pub(super) fn seat_mut(&mut self) -> &mut Option<Seat> {
        &mut self.held.seat
    }

    /// The claim with the path as the server knows it.
    pub(super) fn absolute_claim(&self) -> &Claim {
        &self.held.claim
    }

    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.held.max_hold
    }

    /// Holds in another mode from now on, in the same place.
    pub(super) fn set_kind(&mut self, kind: Kind) {
        self.held.kind = kind;
    }

    /// What the server keeps of it, to be given back together with others; `None`: it is lost, or kept
    /// otherwise.
    pub(super) fn give_back(&mut self) -> Option<(Claim, Served)> {
        if !self.is_held() {
            return None;
        }
        match self.held.seat.take() {
            Some(Seat::Served(place)) => {
                self.held.loss.declare(LostReason::Released);
                Some((self.held.claim.clone(), place))
            }
            seat => {
                self.held.seat = seat;
                None
            }
        }
    }

    fn stop_watching(&self) {
        self.held.sentinels.iter().for_each(Task::abort);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop_watching();
        self.held.loss.declare(LostReason::Released);
    }
}

/// From when a maximum hold counts. The server takes the lock away the maximum (and an eighth of it, for
/// clocks that run differently) and a session timeout after the grant. We learn of the grant late if its
/// notice was missed: so it counts from the moment of learning, but at the latest from a session timeout
/// (less a tenth) after the last moment at which there was no grant yet.
fn latest_start(learnt: Instant, ungranted_at: Option<Instant>, timeout: Duration) -> Instant {
    ungranted_at.map_or(learnt, |before| learnt.min(before + (timeout - timeout / 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_hold_ends_before_the_server_takes_the_lock_away_however_late_we_learnt_of_it() {
        let (asked, timeout) = (Instant::now(), Duration::from_secs(10));
        let at = |s| asked + Duration::from_secs(s);
        assert_eq!(latest_start(at(3), Some(asked), timeout), at(3));
        assert_eq!(latest_start(at(30), Some(asked), timeout), at(9));
        assert_eq!(latest_start(at(30), None, timeout), at(30));
        for most in [1, 10, 60, 3_600, 86_400].map(Duration::from_secs) {
            // Granted the moment after it was asked for, learned of when the session nearly ended; rates 5 %
            // apart.
            let ours = latest_start(at(30), Some(asked), timeout) + most - asked;
            let theirs = most + most / 8 + timeout;
            assert!(ours.mul_f64(1.05) < theirs.div_f64(1.05), "{most:?}");
        }
    }
}
