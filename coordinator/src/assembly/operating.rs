//! What of a node carries out the wishes of its operators, and what lets it leave.

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::sync::watch;
use tokio::sync::mpsc;

use super::cluster::Operating;
use super::leave::Leave;
use super::parts::Parts;
use crate::config::NodeConfig;
use crate::node::hand_over::HandOver;
use crate::node::proposer::Proposer;

/// Signals for other tasks.
pub(super) struct Signals {
    pub(super) leaving: watch::Receiver<bool>,
    pub(super) drained: watch::Receiver<bool>,
}

impl Parts {
    /// Makes what lets a node leave, its operator, and the signals that they give.
    pub(super) fn operating(
        &self,
        config: &NodeConfig,
        leadership: &watch::Receiver<Leadership>,
        proposer: &Proposer,
        proposals: &mpsc::Sender<TermBatch>,
    ) -> (Leave, Operating, Signals) {
        let ((leaving_tx, leaving), (drain, drained)) = (watch::channel(false), watch::channel(false));
        let (me, raft, peers) = (config.id, self.raft.clone(), self.peers.clone());
        let hand_over =
            HandOver { me, raft, leadership: leadership.clone(), proposer: proposer.clone(), peers };
        let operator = self.operator(config, hand_over.clone(), (drain, proposals.clone()));
        let leave = Leave { hand_over, pending: self.pending.clone(), leaving: leaving_tx };
        (leave, operator, Signals { leaving, drained })
    }
}
