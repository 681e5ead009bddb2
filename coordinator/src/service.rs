//! What this node does for the others: takes proposals and touches if it leads, answers for the log, changes
//! members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::Proposal;
use rowlock_types::departure::Departure;
use rowlock_types::member::Member;
use rowlock_types::metrics::Metrics;
use rowlock_types::reconfiguration::Wanted;
use rowlock_types::status::Status;
use rowlock_wal::Folder;
use tokio::sync::mpsc;

use crate::peer::{Introduction, Lane, PeerService, Refusal};
use crate::proposer::fold::Parcel;
use crate::raft::leadership::Leadership;
use crate::raft::reconfigure::Reconfigurer;
use crate::raft::{Admission, QuorumContact, Raft, is_member};
use crate::session::charge::Charge;
use crate::session::liveness::REPORT_DEADLINE;
use crate::session::notes::{Notes, Unnoted};

/// A membership change or a read's confirmation that takes longer has no quorum.
const QUORUM_DEADLINE: Duration = Duration::from_secs(10);

/// The node's face towards the other nodes.
pub struct Service {
    /// This node.
    pub me: NodeId,
    /// Raft.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Where proposals go.
    pub folder: mpsc::Sender<Parcel>,
    /// This node is about to stop: proposals are for the next leader.
    pub leaving: watch::Receiver<bool>,
    /// The sessions, while this node leads.
    pub charge: Arc<Charge>,
    /// Takes note of what the other nodes report.
    pub notes: Arc<Notes>,
    /// Where it is told that a node's heartbeats have ended with their connection.
    pub parted: mpsc::Sender<NodeId>,
    /// Changes of the membership in ZooKeeper's terms.
    pub reconfigurer: Arc<Reconfigurer>,
    /// What this node says of itself.
    pub status: watch::Receiver<Status>,
    /// How far the others have stored the log, while this node leads.
    pub quorum: QuorumContact,
    /// Whether this node takes part.
    pub admission: Admission,
    /// Whom it has met.
    pub data_folder: Folder,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

impl Service {
    fn not_leader(&self) -> Refusal {
        Refusal::NotLeader { leader: self.leadership.borrow().leader.filter(|leader| *leader != self.me) }
    }

    fn leads(&self) -> Option<Leadership> {
        let view = *self.leadership.borrow();
        (view.leader == Some(self.me)).then_some(view)
    }

    /// Whether this node looks after the sessions in `term`, also those of node `from`.
    fn in_charge_for(&self, from: NodeId, term: u64) -> Result<(), Refusal> {
        match self.leads() {
            Some(view) if view.ready && view.term == term && self.charge.term() == Some(term) => {}
            _ => return Err(self.not_leader()),
        }
        if is_member(&self.raft, from) { Ok(()) } else { Err(Refusal::NotServing) }
    }

    async fn change(&self, change: ChangeMembers<u64, Member>) -> Result<u64, Refusal> {
        if self.leads().is_none() {
            return Err(self.not_leader());
        }
        // `retain`: a voter that is replaced stays as a learner until it is removed on purpose.
        let changing = self.raft.change_membership(change, true);
        match time::timeout(QUORUM_DEADLINE, changing).await {
            Ok(Ok(done)) => Ok(done.log_id.index),
            Ok(Err(e)) if e.forward_to_leader().is_some() => Err(self.not_leader()),
            Ok(Err(e)) => Err(Refusal::Invalid(e.to_string())),
            Err(_) => Err(Refusal::NoQuorum),
        }
    }
}

impl PeerService for Service {
    /// Refused in another term than this one: a leader that has lost its leadership and regained it has
    /// dropped what it had taken before.
    async fn forward(&self, _from: NodeId, term: u64, proposals: Vec<Proposal>) -> Result<(), Refusal> {
        if *self.leaving.borrow() {
            self.metrics.forwards_refused_total.inc();
            return Err(Refusal::NotServing);
        }
        let leads_in = self.leads().map(|view| view.term);
        if leads_in.is_some_and(|leads_in| leads_in > term) {
            rare::taken(Rare::ForwardOfEarlierTerm);
        }
        let term = leads_in.filter(|_| mutant::is(Mutant::ForwardOfAnyTerm)).unwrap_or(term);
        if leads_in != Some(term) {
            self.metrics.forwards_refused_total.inc();
            return Err(self.not_leader());
        }
        self.metrics.forwards_received_total.add(proposals.len() as u64);
        self.folder.send(Parcel { term, proposals }).await.map_err(|_| Refusal::NotServing)
    }

    /// Refused to a node that is no member (any more): the answer is its contact to the quorum, without which
    /// it serves nobody; and nothing tells it what is committed.
    async fn touches(
        &self,
        from: NodeId,
        sessions: Vec<SessionId>,
        term: u64,
    ) -> Result<Vec<SessionId>, Refusal> {
        self.in_charge_for(from, term)?;
        self.notes.touch(term, sessions, REPORT_DEADLINE).await.map_err(|unnoted| match unnoted {
            Unnoted::NotInCharge => self.not_leader(),
            Unnoted::NoQuorum => Refusal::NoQuorum,
        })
    }

    async fn departures(&self, from: NodeId, departures: Vec<Departure>, term: u64) -> Result<(), Refusal> {
        self.in_charge_for(from, term)?;
        if self.notes.departed(term, &departures) { Ok(()) } else { Err(self.not_leader()) }
    }

    /// The leader sends its heartbeats over a connection of its own. One that is not heard of here is heard
    /// of by silence.
    fn parted(&self, from: NodeId, lane: Lane) {
        if lane == Lane::Heartbeat {
            let _ = self.parted.try_send(from);
        }
    }

    async fn read_index(&self) -> Result<u64, Refusal> {
        if self.leads().is_none() {
            return Err(self.not_leader());
        }
        // Never by the lease: a voter that has restarted quickly may have voted for another leader.
        let reading = self.raft.get_read_linearizer(ReadPolicy::ReadIndex);
        match time::timeout(QUORUM_DEADLINE, reading).await {
            Ok(Ok(linearizer)) => Ok(linearizer.read_log_id().index()),
            Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) | Err(_) => {
                Err(Refusal::NoQuorum)
            }
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_)))) => Err(self.not_leader()),
            Ok(Err(RaftError::Fatal(_))) => Err(Refusal::NotServing),
        }
    }

    async fn meet(&self, from: NodeId) -> Introduction {
        let metrics = self.raft.metrics();
        let raft = metrics.borrow_watched();
        let (members, stored) = (&raft.membership_config, self.quorum.stored_by(from.0));
        Introduction {
            voters: members.membership().voter_ids().map(NodeId).collect(),
            learners: members.membership().learner_ids().map(NodeId).collect(),
            members_at: members.log_id().as_ref().map(|id| id.index),
            last_index: raft.last_log_index,
            is_admitted: self.admission.is_granted(),
            term: stored.map_or(raft.current_term, |(term, _)| term),
            leader: raft.current_leader.map(NodeId),
            acknowledged: stored.map(|(_, index)| index),
            met: self.data_folder.met(),
        }
    }

    async fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    async fn add_learner(&self, node: NodeId, member: Member) -> Result<u64, Refusal> {
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(node.0, member)]))).await
    }

    async fn change_voters(&self, voters: BTreeSet<NodeId>) -> Result<u64, Refusal> {
        let ids = voters.into_iter().map(|node| node.0).collect();
        self.change(ChangeMembers::ReplaceAllVoters(ids)).await
    }

    async fn reconfigure(&self, wanted: Wanted) -> Result<Result<u64, ErrorCode>, Refusal> {
        self.reconfigurer.reconfigure(&wanted).await
    }
}
