//! How a node leaves before it stops, so that the others need not find out by waiting for it: it takes
//! nothing from clients any more, answers what it has taken, finishes what it was given as the leader, and
//! hands leadership over.
//!
//! Stands before everything else of a stop. Must never do: fail, or take long; whatever goes wrong here the
//! others can deal with, as they can with a node that is killed.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::time;

use crate::hand_over::HandOver;
use crate::proposer::pending::PendingWrites;

/// For the writes of this node's own clients to be answered.
const ANSWERS_DEADLINE: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Dependencies of a stop.
pub(super) struct Leave {
    pub(super) hand_over: HandOver,
    pub(super) pending: Arc<PendingWrites>,
    /// Heard by the status publisher, which ends serving, and by the service, which takes no more proposals:
    /// the other nodes hold theirs for the next leader.
    pub(super) leaving: watch::Sender<bool>,
}

impl Leave {
    /// Does it, within a few seconds at the worst.
    pub(super) async fn run(self) {
        self.leaving.send(true);
        if time::timeout(ANSWERS_DEADLINE, self.clients_are_answered()).await.is_err() {
            tracing::info!("some clients will not learn what has become of their last writes");
        }
        if self.hand_over.leads()
            && let Some(next) = self.hand_over.successor()
        {
            // If no node takes over, the others elect a leader.
            self.hand_over.to(next).await;
        }
    }

    /// Waits until no client of this node waits for the log. No more is taken from clients.
    async fn clients_are_answered(&self) {
        while !self.pending.is_empty() {
            time::sleep(ASK_EVERY).await;
        }
    }
}
