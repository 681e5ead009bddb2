//! Contact of this leader to the other members, by their acknowledgements.

use std::collections::BTreeSet;

use openraft::RaftMetrics;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Silence;
use rowlock_proto::NodeId;

use super::Raft;
use super::acks::Acks;
use crate::raft_types::{LeaderId, TypeConfig};

#[derive(Clone)]
pub struct QuorumContact {
    raft: Raft,
    acks: Acks,
}

impl QuorumContact {
    /// Creates the contact of the node with this Raft, whose network records `acks`.
    pub fn new(raft: Raft, acks: Acks) -> Self {
        QuorumContact { raft, acks }
    }

    /// Returns a receiver that changes whenever a member acknowledges a request.
    pub fn heard(&self) -> watch::Receiver<()> {
        self.acks.heard.subscribe()
    }

    /// Returns this node's term and the index up to which `member` has acknowledged the log, while this node
    /// leads.
    pub fn stored_by(&self, member: u64) -> Option<(u64, u64)> {
        let metrics = self.raft.metrics();
        let metrics: &RaftMetrics<TypeConfig> = &metrics.borrow_watched();
        let (term, us) = (metrics.current_term, metrics.id);
        let stored = self.acks.stored(LeaderId { term, node_id: us }, member);
        stored.filter(|_| metrics.state.is_leader()).map(|index| (term, index))
    }

    /// Forgets the acknowledgements of `member`, which was removed and returns with another data folder.
    pub fn forget(&self, member: u64) {
        self.acks.forget(member);
    }

    /// Sets the members. The silence of a member that is added later starts now.
    pub fn follow_members(&self, members: &BTreeSet<NodeId>) {
        self.acks.follow_members(members, time::now());
    }

    /// Returns the silence of each other member towards this leader. Empty on other nodes.
    pub fn silences(&self) -> Vec<Silence> {
        let metrics = self.raft.metrics();
        let metrics: &RaftMetrics<TypeConfig> = &metrics.borrow_watched();
        let leader = LeaderId { term: metrics.current_term, node_id: metrics.id };
        if !metrics.state.is_leader() {
            return Vec::new();
        }
        let silences = self.acks.silences(leader, time::now());
        assert!(silences.iter().all(|it| it.node.0 != metrics.id), "a leader is not silent to itself");
        silences
    }

    /// Returns this leader's term and the send time of the latest request that a quorum acknowledged. `None`
    /// on other nodes.
    pub fn last(&self) -> Option<(u64, Instant)> {
        self.acks.last()
    }
}
