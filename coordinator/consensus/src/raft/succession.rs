//! The next leader, sooner: a follower that sees the leader's connection break does not wait for the random
//! part of its election timeout.
//!
//! A process that ends closes its connections, and no heartbeat can come any more. Still nobody may be
//! elected before the leader's lease is over, for the voters keep it; so this node asks again and again, from
//! now on, whether it would be elected (Pre-Vote: Ongaro's thesis, section 9.6). Invariant: it never does
//! more than ask. While a quorum hears its leader, every such question is refused, and no term changes: a
//! connection that broke by itself disturbs nobody.

use std::time::Duration;

use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::{rng, time};
use rowlock_proto::NodeId;
use tokio::sync::mpsc;

use super::Raft;
use super::leadership::Leadership;

/// Asked so often, and up to twice as long apart: two followers that ask at the same moment would split the
/// vote.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// What the task needs.
pub struct Succession {
    /// Asked to stand.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Nodes whose connection for heartbeats to this node has ended.
    pub peer_disconnected: mpsc::Receiver<NodeId>,
    /// How long to go on asking: longer than the lease, or it is in vain.
    pub patience: Duration,
}

impl Succession {
    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: Shutdown) {
        tokio::select! {
            biased;
            () = shutdown.wait() => {}
            () = async {
                while let Some(node) = self.peer_disconnected.recv().await {
                    self.stand_for(node).await;
                }
            } => {}
        }
    }

    /// Asks until there is an election, or for as long as it makes sense.
    async fn stand_for(&self, peer_disconnected: NodeId) {
        let lost = *self.leadership.borrow();
        if lost.leader != Some(peer_disconnected) {
            return;
        }
        tracing::debug!(node = %peer_disconnected, "the leader's connection has ended");
        let since = time::now();
        while since.elapsed() < self.patience {
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
