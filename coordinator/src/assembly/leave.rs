//! Orderly leave before a stop, so that the other nodes need no timeout to detect it: the node accepts no
//! more requests from clients, answers the accepted ones, finishes the leader's work, and hands leadership
//! over.
//!
//! Runs before all other steps of a stop. Must never fail or take long: the other nodes handle a failure here
//! like the crash of a node.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::time;

use crate::node::hand_over::HandOver;
use crate::node::proposer::pending::PendingWrites;

/// Time for the writes of this node's own clients to be answered.
const ANSWERS_DEADLINE: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Dependencies of a stop.
pub(super) struct Leave {
    pub(super) hand_over: HandOver,
    pub(super) pending: Arc<PendingWrites>,
    /// Signal for the status publisher, to stop serving, and for the service, to accept no more proposals:
    /// the other nodes keep theirs for the next leader.
    pub(super) leaving: watch::Sender<bool>,
}

impl Leave {
    /// Leaves within a few seconds at most.
    pub(super) async fn run(self) {
        self.leaving.send(true);
        if time::timeout(ANSWERS_DEADLINE, self.clients_are_answered()).await.is_err() {
            tracing::info!("the last writes of some clients have an unknown outcome");
        }
        if self.hand_over.leads()
            && let Some(next) = self.hand_over.successor()
        {
            // If no node takes over, the others elect a leader.
            self.hand_over.to(next).await;
        }
    }

    /// Waits until no client of this node waits for the log. The node accepts no more requests meanwhile.
    async fn clients_are_answered(&self) {
        while !self.pending.is_empty() {
            time::sleep(ASK_EVERY).await;
        }
    }
}
