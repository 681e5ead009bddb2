//! Handles requests from other nodes. While this node leads, it takes proposals and keepalives, confirms read
//! indexes and changes the membership.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::message::ClientDisconnect;
use rowlock_consensus::peer::{Introduction, Lane, PeerService, Refusal};
use rowlock_consensus::raft::elections::Leadership;
use rowlock_consensus::raft::facts::NotDone;
use rowlock_consensus::raft::{facts, is_member};
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_consensus::status::Status;
use rowlock_env::choice::{self, Choice};
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::time;
use rowlock_metrics::{LeaderEnd, Silence};
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::Proposal;
use rowlock_wal::entry::Member;

use rowlock_sessions::expiry_table::{HeartbeatAcks, Unconfirmed};
use rowlock_sessions::liveness::REPORT_DEADLINE;

use crate::node::admin::Admin;
use crate::node::context::NodeContext;

/// Longest time for a membership change or a read index with a quorum.
const QUORUM_DEADLINE: Duration = Duration::from_secs(10);

pub struct Service {
    pub node: Arc<NodeContext>,
    /// Confirms the keepalives reported by other nodes.
    pub heartbeat_acks: Arc<HeartbeatAcks>,
    /// Executes operators' requests to this node, and records founders.
    pub admin: Arc<dyn Admin>,
}

impl Service {
    fn not_leader(&self) -> Refusal {
        Refusal::NotLeader {
            leader: self.node.leadership.borrow().leader.filter(|leader| *leader != self.node.me),
        }
    }

    fn leads(&self) -> Option<Leadership> {
        let view = *self.node.leadership.borrow();
        (view.leader == Some(self.node.me)).then_some(view)
    }

    /// Returns the number of sessions per second that another member may invite to this node.
    fn invites_per_second(&self) -> u32 {
        let status = self.node.status.borrow();
        let followers = (status.voters.len() + status.learners.len()).saturating_sub(1);
        if !status.serving || self.node.replica.memory.is_full() {
            return 0;
        }
        self.node.replica.invitations.per_second(followers, self.node.metrics.connections.get())
    }

    /// Checks that this node leads `term`, runs the session timers, and that `from` is a member.
    fn leads_for(&self, from: NodeId, term: u64) -> Result<(), Refusal> {
        match self.leads() {
            Some(view)
                if decides!(
                    "leader-takes-keepalives",
                    view.ready && view.term == term && self.node.expiry_table.term() == Some(term)
                ) => {}
            _ => return Err(self.not_leader()),
        }
        if decides!("keepalives-come-from-member", is_member(&self.node.raft, from)) {
            Ok(())
        } else {
            Err(Refusal::NotServing)
        }
    }

    /// Runs an operation of the leader. An operation still pending after [`QUORUM_DEADLINE`] has no quorum.
    async fn lead<T>(&self, doing: impl Future<Output = Result<T, NotDone>>) -> Result<T, Refusal> {
        if self.leads().is_none() {
            return Err(self.not_leader());
        }
        match time::timeout(QUORUM_DEADLINE, doing).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(NotDone::NotLeader)) => Err(self.not_leader()),
            Ok(Err(NotDone::Invalid(why))) => Err(Refusal::Invalid(why)),
            Ok(Err(NotDone::Stopped)) => Err(Refusal::NotServing),
            Ok(Err(NotDone::NoQuorum)) | Err(_) => Err(Refusal::NoQuorum),
        }
    }
}

/// Returns the term for proposals forwarded to the leader of `term`.
fn taken_in(leads_in: Option<u64>, term: u64) -> Option<u64> {
    leads_in.filter(|leads_in| {
        decides!("forward-is-of-this-term", *leads_in == term) || mutant::is(Mutant::ForwardOfAnyTerm)
    })
}

impl PeerService for Service {
    /// Takes forwarded proposals, only in the same term: a leader that lost and regained its leadership has
    /// dropped the proposals taken before.
    async fn forward(&self, _from: NodeId, term: u64, proposals: Vec<Proposal>) -> Result<(), Refusal> {
        if decides!("leader-is-leaving", *self.node.leaving.borrow()) {
            return Err(Refusal::NotServing);
        }
        let leads_in = self.leads().map(|view| view.term);
        if leads_in.is_some_and(|leads_in| leads_in > term) {
            rare::taken(Rare::ForwardOfEarlierTerm);
        }
        let is_refused = choice::taken(Choice::ForwardRefused, 50);
        let Some(term) = taken_in(leads_in, term).filter(|_| !is_refused) else {
            return Err(self.not_leader());
        };
        self.node.proposals.send(TermBatch { term, proposals }).await.map_err(|_| Refusal::NotServing)
    }

    /// Confirms keepalives, only for members: a follower takes the reply as its contact with the quorum, the
    /// condition for serving clients; a removed node no longer learns committed entries.
    async fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
        is_short: bool,
    ) -> Result<(Vec<SessionId>, u32), Refusal> {
        self.leads_for(from, term)?;
        self.node.replica.room.record(term, from, is_short);
        match self.heartbeat_acks.touch(term, sessions, REPORT_DEADLINE).await {
            Ok(refused) => Ok((refused, self.invites_per_second())),
            Err(Unconfirmed::NotLeader) => Err(self.not_leader()),
            Err(Unconfirmed::NoQuorum) => Err(Refusal::NoQuorum),
        }
    }

    async fn client_disconnects(
        &self,
        from: NodeId,
        disconnects: Vec<ClientDisconnect>,
        term: u64,
    ) -> Result<(), Refusal> {
        self.leads_for(from, term)?;
        if decides!("disconnects-are-recorded", self.heartbeat_acks.client_disconnected(term, &disconnects)) {
            Ok(())
        } else {
            Err(self.not_leader())
        }
    }

    /// Ends the lease at the end of the leader's heartbeat connection. Heartbeats have a connection of their
    /// own.
    fn peer_disconnected(&self, from: NodeId, lane: Lane) {
        if lane == Lane::Heartbeat
            && let Some(term) = self.node.lease.disconnected(from.0)
        {
            self.node.metrics.leaderships_total.ends(term, LeaderEnd::Disconnected);
            tracing::debug!(node = %from, "the leader's connection ended");
        }
    }

    async fn read_index(&self) -> Result<u64, Refusal> {
        self.lead(facts::read_index(&self.node.raft)).await
    }

    async fn introduce(&self, from: NodeId) -> Introduction {
        let (raft, stored) = (facts::facts(&self.node.raft), self.node.quorum.stored_by(from.0));
        let (members, members_at) = facts::members(&self.node.raft);
        let nodes = members.nodes.iter();
        let addresses = nodes.map(|(node, member)| (*node, member.dial_addr())).collect();
        Introduction {
            voters: members.voters.iter().copied().collect(),
            learners: members.learners().collect(),
            members_at: members_at.map(|at| at.index),
            last_index: raft.last_index,
            is_admitted: self.node.admission.is_granted(),
            term: stored.map_or(raft.term, |(term, _)| term),
            leader: raft.leader,
            acknowledged: stored.map(|(_, index)| index),
            known: self.node.peers.folder().known(),
            addresses,
            leads_with: facts::leads_with(&self.node.raft).await,
        }
    }

    async fn status(&self) -> Status {
        let status = self.node.status.borrow().clone();
        Status { silent: Silence::known(&self.node.quorum.silences()), ..status }
    }

    async fn add_learner(&self, node: NodeId, member: Member) -> Result<u64, Refusal> {
        if self.node.config.discovery.is_some() && facts::voters(&self.node.raft).is_empty() {
            self.admin.record_founder(node, member);
            return Err(self.not_leader());
        }
        self.lead(facts::add_learner(&self.node.raft, node, member)).await
    }

    async fn reconfigure(&self, wanted: Wanted) -> Result<Result<u64, ErrorCode>, Refusal> {
        self.node.reconfigurer.reconfigure(&wanted).await
    }

    async fn operate(&self, operation: Operation) -> Result<Result<String, ErrorCode>, Refusal> {
        self.admin.carry_out(&operation).await
    }
}
