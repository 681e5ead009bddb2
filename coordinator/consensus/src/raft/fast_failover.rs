//! A follower asks for pre-votes as soon as the leader's connection breaks, and does not wait for the random
//! part of its election timeout.
//!
//! A process that ends closes its connections, and no heartbeat can come any more. The voters keep the
//! leader's lease and elect no other node before it is over. So this node asks repeatedly whether it would be
//! elected (Pre-Vote: Ongaro's thesis, section 9.6). Invariant: it never does more than ask. While a quorum
//! hears its leader, every such question is refused, and no term changes: a connection that broke by itself
//! disturbs no other node.

use std::sync::Arc;
use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::{rng, time};
use rowlock_proto::NodeId;
use rowlock_types::metrics::{LeaderEnd, Metrics};
use tokio::sync::mpsc;

use super::Raft;
use super::leadership::Leadership;

/// The shortest pause between two questions; the longest is twice that. It is random, since two followers
/// that ask at the same moment would split the vote.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Dependencies of the task.
pub struct FastFailover {
    /// Asks for the pre-votes.
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Nodes whose connection for heartbeats to this node has ended.
    pub peer_disconnected: mpsc::Receiver<NodeId>,
    /// How long to go on asking. It must be longer than the lease.
    pub ask_for: Duration,
    /// Counts why leaders end.
    pub metrics: Arc<Metrics>,
}

impl FastFailover {
    pub async fn run(mut self) {
        assert!(self.ask_for > ASK_EVERY, "it asks more than once");
        while let Some(node) = self.peer_disconnected.recv().await {
            self.ask_for_votes(node).await;
        }
    }

    /// Asks until there is an election, or for as long as it makes sense.
    async fn ask_for_votes(&self, disconnected: NodeId) {
        let lost = *self.leadership.borrow();
        if lost.leader != Some(disconnected) {
            return;
        }
        self.metrics.leaderships_total.ends(lost.term, LeaderEnd::Disconnected);
        tracing::debug!(node = %disconnected, "the leader's connection has ended");
        let since = time::now();
        while since.elapsed() < self.ask_for {
            let more = rng::below(ASK_EVERY.as_millis() as u64);
            time::sleep(ASK_EVERY + Duration::from_millis(more)).await;
            let now = *self.leadership.borrow();
            if (now.term, now.leader) != (lost.term, lost.leader) {
                return;
            }
            if self.raft.trigger().elect(true).await.is_err() {
                return;
            }
        }
    }
}
