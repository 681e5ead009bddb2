//! Writes of this node's clients that wait for their turn.

use rowlock_consensus::batching::weight_of;
use tokio::sync::mpsc;

use super::Submission;
use super::fair_queue::FairQueue;
use crate::limits::FAIR_QUEUE_MAX;

/// Submitted writes of all connections.
pub struct Submissions {
    pub(super) arriving: mpsc::Receiver<Submission>,
    pub(super) waiting: FairQueue<Submission>,
}

impl Submissions {
    /// Creates the queue behind the channel `arriving`.
    pub fn new(arriving: mpsc::Receiver<Submission>) -> Submissions {
        Submissions { arriving, waiting: FairQueue::default() }
    }

    /// Returns whether no write waits for its turn.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits for an arriving write and queues it, if the queue has room. Returns false when the channel is
    /// closed. Cancel safe.
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

    /// Returns the next write in turn with its bytes, if it has at most `most` bytes.
    pub(super) fn next(&mut self, most: usize) -> Option<(usize, Submission)> {
        while self.waiting.len() < FAIR_QUEUE_MAX
            && let Ok(arrived) = self.arriving.try_recv()
        {
            self.wait(arrived);
        }
        self.waiting.pop_within(most)
    }
}
