//! The router's intake: writes in the order of their arrival while all of them fit into the next batch, else
//! in the fair queue.

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

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.arriving.len()
    }

    /// Waits for one that arrives, if another one may be taken. `None`: there will be none. Cancel safe.
    pub(super) async fn arrival(&mut self) -> Option<Submission> {
        if self.waiting.len() >= FAIR_QUEUE_MAX {
            return std::future::pending().await;
        }
        self.arriving.recv().await
    }

    pub(super) fn wait(&mut self, submission: Submission) {
        let bytes = weight_of(&submission.command, &submission.identities);
        self.waiting.push(submission.reply_to.key(), bytes, submission);
    }

    /// Has all that have arrived wait for their turns.
    pub(super) fn wait_all(&mut self) {
        while self.waiting.len() < FAIR_QUEUE_MAX
            && let Ok(next) = self.arriving.try_recv()
        {
            self.wait(next);
        }
    }

    /// The first one of a batch of this many commands. In it are all that have arrived, or those whose turns
    /// come.
    pub(super) fn first(&mut self, arrived: Option<Submission>, most: usize) -> Option<Submission> {
        if self.waiting.is_empty() && self.arriving.len() < most {
            return arrived;
        }
        arrived.into_iter().for_each(|arrived| self.wait(arrived));
        self.wait_all();
        self.waiting.pop_within(usize::MAX)
    }

    /// The next one of a batch that has room for this many bytes.
    pub(super) fn next(&mut self, room: usize) -> Option<Submission> {
        if self.waiting.is_empty() { self.arriving.try_recv().ok() } else { self.waiting.pop_within(room) }
    }
}
