//! Creates the parts that carry out operators' requests and the orderly leave.

use std::sync::Arc;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::sync::watch;
use rowlock_proto::NodeId;
use rowlock_types::limits::OPERATIONS_QUEUE_MAX;
use tokio::sync::mpsc;

use super::leave::Leave;
use super::parts::Parts;
use crate::config::UpgradeConfig;
use crate::operations::end_session::EndSession;
use crate::operations::hand_over::HandOver;
use crate::operations::log_level::LogLevel;
use crate::operations::{Ask, Operations, Operator};
use crate::proposer::Proposer;
use crate::upgrade::Upgrades;

/// Signals for other tasks.
pub(super) struct Signals {
    pub(super) leaving: watch::Receiver<bool>,
    pub(super) drained: watch::Receiver<bool>,
}

impl Parts {
    /// Creates the leave and the operator with their signals.
    pub(super) fn operator(
        &self,
        (me, upgrade): (NodeId, UpgradeConfig),
        leadership: &watch::Receiver<Leadership>,
        proposer: &Proposer,
        proposals: &mpsc::Sender<TermBatch>,
    ) -> (Leave, Arc<Operator>, Signals) {
        let ((leaving_tx, leaving), (drain, drained)) = (watch::channel(false), watch::channel(false));
        let (raft, peers) = (self.raft.clone(), self.peers.clone());
        let hand_over =
            HandOver { me, raft, leadership: leadership.clone(), proposer: proposer.clone(), peers };
        let ending = EndSession { replica: self.replica.clone(), proposer: proposer.clone() };
        let upgrades = Upgrades::new(
            (me, upgrade),
            (self.raft.clone(), leadership.clone()),
            self.replica.clone(),
            self.peers.clone(),
            proposals.clone(),
        );
        let operator = Operator {
            hand_over: hand_over.clone(),
            upgrades: Arc::new(upgrades),
            registry: self.registry.clone(),
            ending,
            log_level: Arc::new(LogLevel::of(me)),
            drained: drain,
        };
        let leave = Leave { hand_over, pending: self.pending.clone(), leaving: leaving_tx };
        (leave, Arc::new(operator), Signals { leaving, drained })
    }

    /// Starts the task that forwards operations; returns its queue.
    pub(super) fn start_operations(
        &self,
        me: NodeId,
        leadership: &watch::Receiver<Leadership>,
        here: &Arc<Operator>,
    ) -> mpsc::Sender<Ask> {
        let (asks, queue) = mpsc::channel(OPERATIONS_QUEUE_MAX);
        self.tasks.spawn_until_shutdown("log-level", here.log_level.clone().run());
        let (leadership, peers) = (leadership.clone(), self.peers.clone());
        let operations = Operations { me, queue, leadership, here: here.clone(), peers };
        self.tasks.spawn_until_shutdown("operations", operations.run());
        asks
    }
}
