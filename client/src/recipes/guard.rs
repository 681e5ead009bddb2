//! [`Guard`]: a lock that is held, and all the ways to learn that it is not any more.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::task::{self, Task};
use rowlock_env::time::{self, Instant};
use rowlock_proto::request::PathWatch;
use rowlock_proto::{ErrorCode, FencingToken, Request, Stat};

use super::place::Place;
use crate::client::Client;
use crate::error::{Error, LockLost, LostReason, ReleaseError};
use crate::limits::REFUSED_PAUSE;
use crate::session::watches::WatchedBy;
use crate::watch::OneshotWatch;

/// How a lock was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// The place in the queue at entry; 0: the lock was free.
    pub position: usize,
    /// How often a watch woke us. At most one per predecessor that came to its end: for a waiter in an orderly queue
    /// exactly one.
    pub wakeups: u32,
    /// Time from the call to the grant.
    pub waited: Duration,
}

/// A held lock. Dropping it gives the lock back in the background.
///
/// A lock of this kind can be **lost**: when the session ends (no heartbeat was acknowledged in time) or when somebody
/// deletes its znode. [`Guard::lost`] and [`Guard::run`] tell, before another client can be granted the lock, as long
/// as the clocks' rates differ by less than 5 %. What they cannot do is stop work that is already on its way to some
/// storage: send the [`Guard::token`] along with it, and let the storage refuse tokens that are lower than one it has
/// seen.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    /// Taken by release; its drop leaves the queue.
    place: Option<Place>,
    client: Client,
    path: String,
    token: FencingToken,
    stats: WaitStats,
    deleted: watch::Sender<bool>,
    sentinel: Task<()>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("path", &self.path).field("token", &self.token).finish_non_exhaustive()
    }
}

impl Guard {
    /// Invariant: a list has just shown `place` in the first place of the queue. That is not enough when the session
    /// has ended meanwhile.
    pub(super) fn new(place: Place, stat: Stat, stats: WaitStats) -> Result<Self, Error> {
        let client = place.client().clone();
        if stat.ephemeral_owner != client.session_id() {
            return Err(Error::PlaceLost);
        }
        if client.shared().lost().is_some() {
            return Err(client.vitals().ending.map_or(Error::SessionExpired, |ending| ending.error()));
        }
        let absolute = place.path();
        let (deleted, _) = watch::channel(false);
        let sentinel =
            task::spawn("rowlock-guard", stand_guard(client.clone(), absolute.clone(), deleted.clone()));
        let path = client.relative(absolute);
        Ok(Guard {
            place: Some(place),
            client,
            path,
            token: FencingToken(stat.czxid.0),
            stats,
            deleted,
            sentinel,
        })
    }

    /// Larger than that of every earlier holder of this lock: the position of the creation of our queue znode.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The path of our queue znode.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// How the lock was waited for.
    pub fn wait_stats(&self) -> WaitStats {
        self.stats
    }

    /// Until when the lock is certainly ours unless somebody deletes its znode; each heartbeat that is acknowledged
    /// moves it on. Monotonic clock, conservative. `None`: it is lost.
    pub fn valid_until(&self) -> Option<Instant> {
        if self.is_held() { self.client.valid_until() } else { None }
    }

    /// The lock is ours, as far as can be known here and now. Looks at the clock, so it is right also after the process
    /// was paused.
    pub fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    fn lost_reason(&self) -> Option<LostReason> {
        self.client.shared().lost().or((*self.deleted.borrow()).then_some(LostReason::Deleted))
    }

    /// Waits until the lock is lost. Never returns while it is held.
    ///
    /// # Cancel safety
    /// Cancel safe: for `select!` beside the work.
    pub async fn lost(&self) -> LostReason {
        let mut vitals = self.client.watch_vitals();
        let mut deleted = self.deleted.subscribe();
        loop {
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            // The session's task will say so too, but it may be held up.
            let deadline = self.client.valid_until().unwrap_or_else(time::now);
            tokio::select! {
                biased;
                _ = vitals.changed() => {}
                _ = deleted.changed() => {}
                () = time::sleep_until(deadline) => {}
            }
        }
    }

    /// Runs `work` while the lock is held; drops it at the moment of the loss.
    ///
    /// # Errors
    /// [`LockLost`], also when `work` would have been done just then.
    /// # Cancel safety
    /// That of `work`; the lock stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LockLost> {
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        poll_fn(|cx| {
            // The clock is asked before every step of the work.
            if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(LockLost { reason }));
            }
            if let Some(reason) = self.lost_reason() {
                return Poll::Ready(Err(LockLost { reason }));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Gives the lock back and waits until that is acknowledged, over reconnects if need be.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`]: it had been lost before. [`ReleaseError::Unknown`]: the session ended before the
    /// acknowledgement.
    /// # Cancel safety
    /// The release goes on in the background when the future is dropped.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.sentinel.abort();
        if self.lost_reason().is_some() {
            return Err(ReleaseError::NotHeld);
        }
        let place = self.place.take().expect("only release takes the place, and it consumes the guard");
        match place.leave().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ReleaseError::NotHeld),
            Err(error) if error.is_session_end() => Err(ReleaseError::Unknown),
            Err(error) => {
                tracing::warn!(path = %self.path, %error, "release refused; it is repeated in the background");
                Err(ReleaseError::Unknown)
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.sentinel.abort();
    }
}

/// Watches our own znode: another session may delete it, by force or by mistake.
async fn stand_guard(client: Client, path: String, deleted: watch::Sender<bool>) {
    loop {
        let (mut watch, registration) = OneshotWatch::new(&client, WatchedBy::GetData, path.clone());
        let read = Request::GetData(PathWatch { path: path.clone(), watch: true });
        let reply = match client.submit(read, Some(registration)).await {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match reply {
            // Changed or deleted: look again.
            Ok(_) => {
                if watch.changed().await.is_err() {
                    return;
                }
            }
            Err(Error::Rejected(ErrorCode::NoNode)) => {
                deleted.send(true);
                return;
            }
            Err(Error::ConnectionLoss) => {}
            Err(error) if error.is_retryable() => time::sleep(REFUSED_PAUSE).await,
            // The session has ended, which the guard sees by itself; or we may not read our own znode.
            Err(_) => return,
        }
    }
}
