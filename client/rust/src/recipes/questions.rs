//! [`Questions`]: what other clients ask the holder of a lock.

use std::fmt;
use std::sync::Arc;

use rowlock_env::sync::watch;
use rowlock_env::time::Instant;
use rowlock_proto::lock;

use super::loss::Loss;
use crate::session::lock_states::Followed;

/// Another client asks for a lock that we hold. Both texts are that client's: print them as untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// Why the lock is wanted.
    pub reason: String,
    /// Who asks: as whom its server knows it, and behind that what it says of itself.
    pub by: String,
    /// When it was asked: the leader's clock, milliseconds since 1970.
    pub asked_ms: i64,
    /// The lock is lost then ([`crate::LostReason::Asked`]), unless it is given back before. `None`: it is
    /// only a notice.
    pub deadline: Option<Instant>,
}

impl Question {
    /// As the server told it at `now`, after an earlier one. No question moves a deadline.
    pub(crate) fn told(question: &lock::QuestionNotice, before: Option<&Question>, now: Instant) -> Question {
        let left = question.left_ms.map(|left_ms| now + std::time::Duration::from_millis(left_ms.into()));
        let deadline = left.into_iter().chain(before.and_then(|before| before.deadline)).min();
        let lock::QuestionNotice { reason, by, asked_ms, .. } = question.clone();
        Question { reason, by, asked_ms, deadline }
    }
}

/// The questions to the holder of a lock ([`crate::Guard::asked`]). Cheap to clone, `'static`, keeps neither
/// the lock nor the session alive. Each clone hears every question.
#[derive(Clone)]
pub struct Questions {
    loss: Loss,
    place: watch::Receiver<Followed>,
    /// When the newest one was asked that [`Questions::next`] has returned.
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

    /// The newest question so far, however often it was looked at. `None`: there was none.
    pub fn newest(&self) -> Option<Question> {
        self.loss.newest_question().as_deref().cloned()
    }

    /// Waits for a question that this handle has not returned yet; the newest one counts. `None`: the lock is
    /// lost or was given back, and there will be no more.
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
    /// Cancel safe: what was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let newest: Option<Arc<Question>> = self.loss.newest_question();
            if self.loss.reason().is_some() {
                return None;
            }
            if let Some(question) = newest.filter(|it| self.returned_ms.is_none_or(|last| last < it.asked_ms))
            {
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
