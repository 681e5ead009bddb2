//! Orderly leave before a stop, so that the other nodes need no timeout to detect it: the node accepts no
//! more requests from clients, answers the accepted ones, finishes the leader's work, and hands leadership
//! over.
//!
//! Runs before all other steps of a stop. Must never fail or take long: the other nodes handle a failure here
//! like the crash of a node.

use std::time::Duration;

use rowlock_env::time;

use crate::node::context::NodeContext;

/// Time for the writes of this node's own clients to be answered.
const ANSWERS_DEADLINE: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Leaves within a few seconds at most.
pub(super) async fn leave(node: &NodeContext) {
    node.leaving.send(true);
    if time::timeout(ANSWERS_DEADLINE, clients_are_answered(node)).await.is_err() {
        tracing::info!("the last writes of some clients have an unknown outcome");
    }
    if node.leads()
        && let Some(next) = node.successor()
    {
        // If no node takes over, the others elect a leader.
        node.hand_over_to(next).await;
    }
}

/// Waits until no client of this node waits for the log. The node accepts no more requests meanwhile.
async fn clients_are_answered(node: &NodeContext) {
    while !node.pending.is_empty() {
        time::sleep(ASK_EVERY).await;
    }
}
