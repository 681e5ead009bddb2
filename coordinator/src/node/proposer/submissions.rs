//! Writes of this node's clients that wait for their turns.

use rowlock_consensus::batching::weight_of;
use rowlock_types::limits::FAIR_QUEUE_MAX;
use tokio::sync::mpsc;

use super::Submission;
use super::fair_queue::FairQueue;

/// What connections have submitted.
pub struct Submissions {
    pub(super) arriving: mpsc::Receiver<Submission>,
    pub(super) waiting: FairQueue<Submission>,
}

impl Submissions {
    /// Those that come out of this channel.
    pub fn new(arriving: mpsc::Receiver<Submission>) -> Submissions {
        Submissions { arriving, waiting: FairQueue::default() }
    }

    /// None waits for its turn.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits for one that arrives, if another one may be taken; it then waits for its turn. False: there will
    /// be none. Cancel safe.
    pub(super) async fn arrival(&mut self) -> bool {
        if self.waiting.len() >= FAIR_QUEUE_MAX {
            return std::future::pending().await;
        }
        self.arriving.recv().await.map(|arrived| self.wait(arrived)).is_some()
    }

    fn wait(&mut self, submission: Submission) {
        let bytes = weight_of(&submission.command, &submission.identities);
        self.waiting.push(submission.reply_to.key(), bytes, submission);
    }

    /// The next one in turn with its bytes, if it has at most this many.
    pub(super) fn next(&mut self, most: usize) -> Option<(usize, Submission)> {
        while self.waiting.len() < FAIR_QUEUE_MAX
            && let Ok(arrived) = self.arriving.try_recv()
        {
            self.wait(arrived);
        }
        self.waiting.pop_within(most)
    }
}
