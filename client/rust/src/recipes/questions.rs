//! [`Questions`]: requests of other clients to the holder of a lock.

use std::fmt;
use std::sync::Arc;

use rowlock_env::decides;
use rowlock_env::sync::watch;

use super::loss::Loss;
use crate::session::lock_states::Followed;
use crate::session::question::Question;

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
