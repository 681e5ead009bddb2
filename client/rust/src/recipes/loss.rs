//! News of a held lock for tasks that work under the lock: its loss ([`Loss`]), and requests of other clients
//! to its holder ([`Questions`]).

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};

use crate::error::{LockLost, LostReason};
use crate::session::Shared;
use crate::session::lock_states::{Followed, LockState, LockStateCell, Question};

/// Reports the loss of a lock. Cheap to clone, `'static`, keeps neither the lock nor the session alive: hand
/// a clone to each task that works under a [`crate::Guard`].
#[derive(Clone)]
pub struct Loss {
    shared: Arc<Shared>,
    cell: Arc<LockStateCell>,
    /// End of the maximum hold.
    gives_up_at: Option<Instant>,
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loss").field(&self.reason()).finish()
    }
}

impl Loss {
    pub(crate) fn new(shared: Arc<Shared>, cell: Arc<LockStateCell>, gives_up_at: Option<Instant>) -> Self {
        Loss { shared, cell, gives_up_at }
    }

    /// Reason of the loss; `None`: the lock is held, as far as known here and now. Reads the clock, hence
    /// right also after a pause of the process.
    pub fn reason(&self) -> Option<LostReason> {
        if let LockState::Lost(reason) = self.cell.get() {
            return Some(reason);
        }
        let is_over =
            |at: Option<Instant>| at.is_some_and(|at| decides!("local-deadline-is-over", time::now() >= at));
        let held_enough = is_over(self.gives_up_at).then_some(LostReason::MaxHold);
        let asked = || is_over(self.asked_until()).then_some(LostReason::Asked);
        self.shared.lost().or(held_enough).or_else(asked)
    }

    /// The deadline of an operator's request.
    fn asked_until(&self) -> Option<Instant> {
        self.cell.asked().and_then(|question| question.deadline)
    }

    pub(super) fn newest_question(&self) -> Option<Arc<Question>> {
        self.cell.asked()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Followed> {
        self.cell.watch()
    }

    /// Time until which the hold is certain, unless the cluster revokes the lock. `None`: the lock is lost.
    pub fn valid_until(&self) -> Option<Instant> {
        if self.reason().is_some() {
            return None;
        }
        let session = self.shared.vitals().valid_until?;
        [self.gives_up_at, self.asked_until()].into_iter().flatten().chain([session]).min()
    }

    /// Reason for which the hold ends at [`Loss::valid_until`], unless its end moves; the reason of the loss
    /// if the lock is lost.
    pub fn next_reason(&self) -> LostReason {
        let until = self.valid_until();
        match self.reason() {
            Some(reason) => reason,
            None if until.is_some() && until == self.gives_up_at => LostReason::MaxHold,
            None if until.is_some() && until == self.asked_until() => LostReason::Asked,
            None => LostReason::Unreachable,
        }
    }

    /// Waits until the lock is lost or released. Never returns during the hold.
    ///
    /// # Cancel safety
    /// Cancel safe: for `select!` beside the work.
    pub async fn wait(&self) -> LostReason {
        let mut vitals = self.shared.watch_vitals();
        let mut state = self.cell.watch();
        loop {
            if let Some(reason) = self.reason() {
                return reason;
            }
            // The session's task will say so too, but it may be held up.
            let deadline = self.valid_until().unwrap_or_else(time::now);
            tokio::select! {
                biased;
                _ = vitals.changed() => {}
                _ = state.changed() => {}
                () = time::sleep_until(time::next_clock_check(deadline)) => {}
            }
        }
    }

    /// Waits until the lock may be lost, or is certain for longer than until `deadline`.
    pub(crate) async fn wait_for_news(&self, deadline: Option<Instant>) {
        let mut vitals = self.shared.watch_vitals();
        let mut state = self.cell.watch();
        if self.valid_until() != deadline {
            return;
        }
        tokio::select! {
            biased;
            _ = vitals.changed() => {}
            _ = state.changed() => {}
            () = time::sleep_until(time::next_clock_check(deadline.unwrap_or_else(time::now))) => {}
        }
    }

    /// Runs `work` during the hold; drops `work` at the moment of the loss.
    ///
    /// # Errors
    /// [`LockLost`], even if `work` was about to finish.
    /// # Cancel safety
    /// The cancel safety of `work`.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LockLost> {
        let mut lost = pin!(self.wait());
        let mut work = pin!(work);
        poll_fn(|cx| {
            // The clock is asked before every step of the work.
            if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(LockLost { reason }));
            }
            if let Some(reason) = self.reason() {
                return Poll::Ready(Err(LockLost { reason }));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Declares the lock lost for this reason, unless an earlier loss stands.
    pub(crate) fn declare(&self, reason: LostReason) {
        self.cell.advance(LockState::Lost(reason));
    }
}

/// The questions to the holder of a lock ([`crate::Guard::asked`]). Cheap to clone, `'static`, keeps neither
/// the lock nor the session alive. Each clone hears every question.
#[derive(Clone)]
pub struct Questions {
    loss: Loss,
    place: watch::Receiver<Followed>,
    /// Time of the newest question that [`Questions::next`] has returned.
    returned_ms: Option<i64>,
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Questions").field(&self.newest()).finish()
    }
}

impl Questions {
    pub(super) fn new(loss: Loss) -> Self {
        let place = loss.watch();
        Questions { loss, place, returned_ms: None }
    }

    /// Returns the newest question, repeatedly. `None`: no question came.
    pub fn newest(&self) -> Option<Question> {
        self.loss.newest_question().as_deref().cloned()
    }

    /// Waits for a question that this handle has not returned yet, and skips to the newest. `None`: the lock
    /// is lost or released, and no more questions will come.
    ///
    /// ```
    /// # async fn example(guard: rowlock_client::Guard, work: impl Future<Output = ()>) {
    /// let mut questions = guard.asked();
    /// tokio::pin!(work);
    /// loop {
    ///     tokio::select! {
    ///         () = &mut work => break,
    ///         Some(question) = questions.next() => println!("{} asks: {}", question.by, question.reason),
    ///         reason = guard.lost() => panic!("lost: {reason}"),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe: the next call returns a question that this call did not return.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let newest: Option<Arc<Question>> = self.loss.newest_question();
            if self.loss.reason().is_some() {
                return None;
            }
            if let Some(question) = newest.filter(|it| {
                self.returned_ms.is_none_or(|last| decides!("returned-question-is-new", last < it.asked_ms))
            }) {
                self.returned_ms = Some(question.asked_ms);
                return Some((*question).clone());
            }
            tokio::select! {
                biased;
                _ = self.place.changed() => {}
                _ = self.loss.wait() => {}
            }
        }
    }
}
