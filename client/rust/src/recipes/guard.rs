//! [`Guard`]: a held lock, and all ways to learn of the loss.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::task::Task;
use rowlock_env::time::{self, Instant};
use rowlock_proto::lock::Claim;
use rowlock_proto::{FencingToken, Request, Response};

use super::loss::{Loss, Questions};
use super::names::Kind;
use super::place::Place;
use super::sentinel;
use super::served::{self, Served};
use crate::client::Client;
use crate::error::{Error, LockLost, LostReason, ReleaseError};
use crate::observer::{HoldMeasure, ObservedHold};
use crate::session::lock_states::{LockState, LockStateCell};
use crate::transaction::Transaction;

/// Statistics of a wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// The place in the queue at entry; 0: the lock was free.
    pub position: usize,
    /// Number of wake-ups. On Rowlock at most one, by the grant; on plain ZooKeeper at most one per
    /// predecessor that left, and in an orderly queue a single one.
    pub wakeups: u32,
    /// Time from the call to the grant.
    pub waited: Duration,
}

/// Held lock. Dropping the guard releases the lock in the background: no call waits for the answer, and a
/// client that takes another lock at once usually sends both requests in the same packet. [`Guard::release`]
/// waits, and returns the outcome.
///
/// A distributed lock can be **lost**: the session ends (no server acknowledged a heartbeat in time), another
/// client deletes the znode, an operator forces the release, the maximum hold is over, or the deadline of an
/// operator's request passes. [`Guard::lost`], [`Guard::loss`] and [`Guard::run`] report the loss before
/// another client can be granted the lock, provided the clock rates differ by less than 5 %. A write on its
/// way to a storage cannot be stopped: send the [`Guard::token`] along, and let the storage refuse tokens
/// below the highest token seen; or, if the storage is the coordinator itself, write with [`Guard::txn`].
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    held: Box<GuardState>,
}

struct GuardState {
    client: Client,
    /// Taken by `release`; the drop leaves the queue.
    seat: Option<Seat>,
    claim: Claim,
    kind: Kind,
    stats: WaitStats,
    since: Instant,
    max_hold: Option<Duration>,
    loss: Loss,
    sentinels: Vec<Task<()>>,
    observed: Option<ObservedHold>,
}

/// Our queue znode, by the keeper of the queue.
pub(crate) enum Seat {
    Served(Served),
    /// Kept by the clients, by watches.
    Watched(Place),
}

/// Data of a grant.
pub(crate) struct Grant {
    pub claim: Claim,
    pub kind: Kind,
    pub cell: Arc<LockStateCell>,
    pub stats: WaitStats,
    pub max_hold: Option<Duration>,
    /// A moment before the server's grant; `None`: only this client ends the maximum hold.
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
    /// Invariant: the server (or, on plain ZooKeeper, a list of the queue) has just confirmed the hold. Fails
    /// all the same if the session has ended in the meantime.
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
        let observed = None;
        let held =
            GuardState { client, seat, claim, kind, stats, since, max_hold, loss, sentinels, observed };
        Ok(Guard { held: Box::new(held) })
    }

    /// Lets this guard end an observed hold.
    pub(super) fn observe(&mut self, hold: Option<Arc<HoldMeasure>>) {
        self.held.observed = hold.map(|hold| ObservedHold::new(hold, self.loss()));
    }

    /// Takes the observed hold, for the guard that takes the place of this one.
    pub(super) fn take_hold(&mut self) -> Option<Arc<HoldMeasure>> {
        self.held.observed.take().map(ObservedHold::detach)
    }

    fn end_hold(&mut self) {
        if let Some(observed) = self.held.observed.take() {
            observed.end(self.is_held());
        }
    }

    /// Fencing token of the grant, larger than the token of every earlier holder of this lock: the zxid of
    /// the creation of our queue znode.
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

    /// Our queue znode and token, the argument of [`Client::force_release`].
    pub fn claim(&self) -> Claim {
        Claim { path: self.path().into(), token: self.token() }
    }

    /// Statistics of the wait.
    pub fn wait_stats(&self) -> WaitStats {
        self.held.stats
    }

    /// Time until which the hold is certain unless the cluster revokes the lock: the session's local
    /// deadline, which each acknowledged heartbeat moves on, or the end of the maximum hold. Monotonic clock,
    /// conservative. `None`: the lock is lost.
    pub fn valid_until(&self) -> Option<Instant> {
        self.held.loss.valid_until()
    }

    /// Remaining time of the certain hold, unless the cluster revokes the lock or a heartbeat extends the
    /// time: [`Guard::valid_until`] as a duration for planning. Zero: the lock is lost.
    pub fn remaining(&self) -> Duration {
        self.valid_until().map_or(Duration::ZERO, |until| until.saturating_since(time::now()))
    }

    /// Reports the hold as known here and now. Reads the clock, hence right also after a pause of the
    /// process.
    pub fn is_held(&self) -> bool {
        self.held.loss.reason().is_none()
    }

    /// Returns the loss as a handle for tasks that work under this lock.
    pub fn loss(&self) -> Loss {
        self.held.loss.clone()
    }

    /// Waits until the lock is lost. Never returns during the hold.
    ///
    /// # Cancel safety
    /// Cancel safe: for `select!` beside the work.
    pub async fn lost(&self) -> LostReason {
        self.held.loss.wait().await
    }

    /// Other clients' requests for the lock ([`Client::ask_holders`]), including past requests. At a
    /// request's deadline the lock is lost: [`Guard::lost`] returns, and the cluster revokes the lock from a
    /// holder that keeps going.
    ///
    /// On plain ZooKeeper no requests arrive.
    pub fn asked(&self) -> Questions {
        Questions::new(self.loss())
    }

    /// Waits until four fifths of the maximum hold ([`crate::LockRequest::max_hold`]) are over: time to
    /// finish. Never returns without a maximum hold.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self) {
        match self.held.max_hold {
            Some(most) => time::alarm(sentinel::warning_at(self.held.since, most)).await,
            None => std::future::pending().await,
        }
    }

    /// Runs `work` during the hold; drops `work` at the moment of the loss.
    ///
    /// # Errors
    /// [`LockLost`], even if `work` was about to finish.
    /// # Cancel safety
    /// The cancel safety of `work`; the lock stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LockLost> {
        self.held.loss.run(work).await
    }

    /// Asks the cluster for confirmation of the hold at this moment (linearizable, a round trip): for the
    /// last step before an irreversible action. `false` is final.
    ///
    /// # Errors
    /// The end of the session, and refusals of reads.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn check(&self) -> Result<bool, Error> {
        if !self.is_held() {
            return Ok(false);
        }
        let held = match self.held.seat {
            Some(Seat::Served(_)) => match self.verify().await {
                // The session has moved to a server that does not keep queues.
                Err(Error::Unsupported(_)) => self.check_holding().await?,
                held => held?,
            },
            _ => self.check_holding().await?,
        };
        if decides!("verified-lock-is-lost", !held) {
            self.held.loss.declare(LostReason::Deleted);
        }
        Ok(decides!("lock-is-verified", held && self.is_held()))
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

    /// Checks on plain ZooKeeper for our znode, after a sync.
    async fn check_holding(&self) -> Result<bool, Error> {
        loop {
            let result = match self.held.client.sync(self.path()).await {
                Ok(()) => self.held.client.exists(self.path()).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(stat) => {
                    return Ok(stat
                        .is_some_and(|stat| decides!("held-znode-is-own", stat.czxid.0 == self.token().0)));
                }
                Err(Error::ConnectionLoss) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts a transaction that takes effect only while our queue znode exists: an earlier holder cannot
    /// make these writes to the coordinator. The first operation, of index 0, is the check; after the loss of
    /// the lock [`Client::commit`] fails with [`Error::TransactionRejected`] and index 0.
    pub fn txn(&self) -> Transaction {
        Transaction::new().check(self.path(), None)
    }

    /// Releases the lock and waits for the acknowledgement, over reconnects if need be.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`]: the lock was lost before. [`ReleaseError::Unknown`]: the session ended
    /// before the acknowledgement.
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.stop_watching();
        self.end_hold();
        if !self.is_held() {
            return Err(ReleaseError::NotHeld);
        }
        self.held.loss.declare(LostReason::Released);
        let result = match self.held.seat.take() {
            Some(Seat::Watched(place)) => place.leave().await,
            Some(Seat::Served(mut place)) => {
                let released = served::release(&self.held.client, vec![self.held.claim.clone()]).await;
                if decides!("release-was-answered", released.is_ok()) {
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

    /// Claim with the path on the server.
    pub(super) fn absolute_claim(&self) -> &Claim {
        &self.held.claim
    }

    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.held.max_hold
    }

    /// Changes the mode of the hold.
    pub(super) fn set_kind(&mut self, kind: Kind) {
        self.held.kind = kind;
    }

    /// Takes the claim and queue position for a joint release; `None`: the lock is lost, or the server does
    /// not keep the queue.
    pub(super) fn take_claim(&mut self) -> Option<(Claim, Served)> {
        if !self.is_held() {
            return None;
        }
        match self.held.seat.take() {
            Some(Seat::Served(place)) => {
                self.end_hold();
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
        self.end_hold();
        // After a loss the place may be gone, or another one than the guard's: the drop leaves the queue.
        if self.is_held()
            && let Some(Seat::Served(place)) = &mut self.held.seat
        {
            place.set_held(self.held.claim.clone());
        }
        self.held.loss.declare(LostReason::Released);
    }
}

/// Start of a maximum hold. The server revokes the lock after the maximum, an eighth more (for clocks of
/// different rates) and a session timeout, counted from the grant. A client that missed the notice learns of
/// the grant late: the hold counts from the moment of learning, but at the latest from a session timeout
/// (less a tenth) after the last moment without a grant.
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
            // Granted right after the request, learned of near the session's end; rates 5 % apart.
            let ours = latest_start(at(30), Some(asked), timeout) + most - asked;
            let theirs = most + most / 8 + timeout;
            assert!(ours.mul_f64(1.05) < theirs.div_f64(1.05), "{most:?}");
        }
    }
}
