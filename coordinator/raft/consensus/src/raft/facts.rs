//! What only Raft knows, and what only it can do, in the node's own terms: no module outside this folder has
//! to name openraft.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::errors::{Fatal, LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::time::Instant;
use rowlock_proto::NodeId;
use rowlock_types::member::Member;
use rowlock_types::node_hook::Position;
use rowlock_types::reconfiguration::Members;
use rowlock_types::status::Role;

use super::open::Raft;
use crate::raft_types::{LogId, StoredMembership, TypeConfig, position};

/// How this node stands in Raft.
#[derive(Clone, Debug)]
pub struct Facts {
    pub role: Role,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// End of the log.
    pub last_index: Option<u64>,
    /// Log index up to which it has applied, 0 for none.
    pub applied_index: u64,
    /// Log index up to which it knows the log to be committed, 0 for none. A new leader may know less.
    pub committed_index: u64,
    /// Log index of the last snapshot, 0 for none.
    pub snapshot_index: u64,
    /// Log index up to which the log was purged, 0 for none.
    pub purged_index: u64,
    /// The newest membership in the log.
    pub members: Members,
    /// Where in the log that is.
    pub members_at: Option<Position>,
    /// On the leader: up to which log index each other member has stored the log.
    pub replicated: Vec<(NodeId, u64)>,
}

impl Facts {
    /// Members without a vote.
    pub fn learners(&self) -> Vec<NodeId> {
        let learners = self.members.nodes.keys().filter(|node| !self.members.voters.contains(node));
        learners.copied().collect()
    }
}

pub fn facts(raft: &Raft) -> Facts {
    let metrics = raft.metrics();
    let raft = metrics.borrow_watched();
    let index = |id: &Option<LogId>| id.as_ref().map_or(0, |id| id.index);
    Facts {
        role: match raft.state {
            ServerState::Leader => Role::Leader,
            ServerState::Candidate => Role::Candidate,
            ServerState::Follower => Role::Follower,
            _ => Role::Learner,
        },
        term: raft.current_term,
        leader: raft.current_leader.map(NodeId),
        last_index: raft.last_log_index,
        applied_index: index(&raft.last_applied),
        committed_index: index(&raft.cluster_committed).max(index(&raft.local_committed)),
        snapshot_index: index(&raft.snapshot),
        purged_index: index(&raft.purged),
        members: members(&raft.membership_config),
        members_at: raft.membership_config.log_id().map(position),
        replicated: raft.replication.iter().flatten().map(|(node, id)| (NodeId(*node), index(id))).collect(),
    }
}

fn members(stored: &StoredMembership) -> Members {
    let membership = stored.membership();
    let nodes = membership.nodes().map(|(node, member)| (NodeId(*node), member.clone())).collect();
    Members { nodes, voters: membership.voter_ids().map(NodeId).collect() }
}

/// The committed membership and its log index (0 for none). `None` on the way from one set of voters to
/// another.
pub fn settled_members(raft: &Raft) -> Option<(Members, u64)> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let committed = &metrics.committed_membership_config;
    let is_settled = committed.membership().get_joint_config().len() == 1;
    is_settled.then(|| (members(committed), committed.log_id().as_ref().map_or(0, |id| id.index)))
}

/// What a node that has been started must know of its own log, the present state and not the last report.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Voters of the newest membership in the log.
    pub voters: BTreeSet<NodeId>,
    /// Where in the log that is.
    pub members_at: Option<u64>,
    /// End of the log.
    pub last_index: Option<u64>,
    pub term: u64,
}

/// Returns what was found at the start: see [`Recovered`].
///
/// # Errors
/// Raft has stopped; says why.
pub async fn recovered(raft: &Raft) -> Result<Recovered, String> {
    let state = raft.with_raft_state(|state| {
        let members = state.membership_state.effective();
        Recovered {
            voters: members.voter_ids().map(NodeId).collect(),
            members_at: members.log_id().as_ref().map(|id| id.index),
            last_index: state.log_ids.last().map(|last| last.index),
            term: state.vote_ref().leader_id.term,
        }
    });
    state.await.map_err(|error| error.to_string())
}

/// The leader, as far as this node knows.
pub fn leader(raft: &Raft) -> Option<NodeId> {
    raft.metrics().borrow_watched().current_leader.map(NodeId)
}

/// Log index up to which this node has applied, 0 for none.
pub fn applied_index(raft: &Raft) -> u64 {
    raft.metrics().borrow_watched().last_applied.as_ref().map_or(0, |id| id.index)
}

/// Whether the node is a member, voting or not, as far as this node knows.
pub fn is_member(raft: &Raft, node: NodeId) -> bool {
    raft.metrics().borrow_watched().membership_config.membership().get_node(&node.0).is_some()
}

pub fn voters(raft: &Raft) -> BTreeSet<NodeId> {
    let metrics = raft.metrics();
    let known = metrics.borrow_watched();
    known.membership_config.membership().voter_ids().map(NodeId).collect()
}

/// Returns the sets of voters that need a majority each: two while the voters change.
pub fn voter_sets(raft: &Raft) -> Vec<BTreeSet<NodeId>> {
    let metrics = raft.metrics();
    let known = metrics.borrow_watched();
    let sets = known.membership_config.membership().get_joint_config();
    sets.iter().map(|set| set.iter().copied().map(NodeId).collect()).collect()
}

/// It knows of no other member.
pub fn is_alone(raft: &Raft) -> bool {
    let metrics = raft.metrics();
    let known = metrics.borrow_watched();
    known.membership_config.membership().nodes().count() <= 1
}

/// Whether this node has applied a membership with `node` in it: unlike one that is only in its log, which
/// may come from a leader that has been deposed since, that stays.
pub fn has_joined(raft: &Raft, node: NodeId) -> bool {
    has_applied_member(&raft.metrics().borrow_watched(), node)
}

pub(super) fn has_applied_member(metrics: &RaftMetrics<TypeConfig>, node: NodeId) -> bool {
    let (known, applied) = (&metrics.membership_config, &metrics.last_applied);
    let is_applied = known.log_id().as_ref().map(|at| at.index) <= applied.as_ref().map(|last| last.index);
    is_applied && known.membership().get_node(&node.0).is_some()
}

/// On the leader: the other voters that have acknowledged something `within` this time, and how much of the
/// log each has stored.
pub fn alive_voters(raft: &Raft, me: NodeId, within: Duration) -> BTreeMap<NodeId, u64> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let now = Instant::now();
    let is_alive = |node: &u64| {
        let acked = metrics.heartbeat.as_ref().and_then(|nodes| nodes.get(node)).cloned().flatten();
        acked.is_some_and(|at| now.saturating_since(at.into_inner().into()) <= within)
    };
    let stored = |node: &u64| {
        let matching = metrics.replication.as_ref().and_then(|nodes| nodes.get(node)).cloned().flatten();
        matching.map_or(0, |id: LogId| id.index)
    };
    let voters = metrics.membership_config.membership().voter_ids();
    let others = voters.filter(|node| *node != me.0 && is_alive(node));
    let found: BTreeMap<NodeId, u64> = others.map(|node| (NodeId(node), stored(&node))).collect();
    assert!(!found.contains_key(&me), "a node does not count itself");
    found
}

/// On the leader: the other members, voters and learners, that have acknowledged something `within` this
/// time.
pub fn alive_members(raft: &Raft, within: Duration) -> BTreeSet<NodeId> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let now = Instant::now();
    let acked = metrics.heartbeat.iter().flatten().filter_map(|(node, at)| Some((*node, (*at)?)));
    let alive = acked.filter(|(_, at)| now.saturating_since(at.into_inner().into()) <= within);
    alive.map(|(node, _)| NodeId(node)).collect()
}

/// Forms a cluster of these voters. Says why not, if there is one already.
pub async fn form(raft: &Raft, voters: BTreeMap<NodeId, Member>) -> Result<(), String> {
    let voters: BTreeMap<u64, Member> = voters.into_iter().map(|(node, member)| (node.0, member)).collect();
    raft.initialize(voters).await.map_err(|error| error.to_string())
}

/// Why Raft has not done it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    NotLeader,
    /// The leader has no contact to a quorum.
    NoQuorum,
    Invalid(String),
    Stopped,
}

/// Takes a node in as a learner, and gives the log index of the committed change.
pub async fn add_learner(raft: &Raft, node: NodeId, member: Member) -> Result<u64, NotDone> {
    change(raft, ChangeMembers::AddNodes(BTreeMap::from([(node.0, member)]))).await
}

/// Makes exactly these the voters, and gives the log index of the committed change. One that is replaced
/// stays as a learner until it is removed on purpose.
pub async fn change_voters(raft: &Raft, voters: BTreeSet<NodeId>) -> Result<u64, NotDone> {
    let ids = voters.into_iter().map(|node| node.0).collect();
    change(raft, ChangeMembers::ReplaceAllVoters(ids)).await
}

async fn change(raft: &Raft, change: ChangeMembers<u64, Member>) -> Result<u64, NotDone> {
    match raft.change_membership(change, true).await {
        Ok(done) => Ok(done.log_id.index),
        Err(error) if error.forward_to_leader().is_some() => Err(NotDone::NotLeader),
        Err(error) => Err(NotDone::Invalid(error.to_string())),
    }
}

/// The log index that a linearizable read must wait for, confirmed by a quorum. Never by the lease: a voter
/// that has restarted quickly may have voted for another leader.
pub async fn read_index(raft: &Raft) -> Result<u64, NotDone> {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(NotDone::NoQuorum),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(NotDone::NotLeader),
        Err(RaftError::Fatal(_)) => Err(NotDone::Stopped),
    }
}

/// Asks another node to lead. Whether it succeeds shows in who leads.
pub async fn hand_over(raft: &Raft, to: NodeId) {
    let _: Result<(), Fatal<TypeConfig>> = raft.trigger().transfer_leader(to.0).await;
}

/// Has the quorum acknowledge this leader now. Raft that has stopped acknowledges nothing.
pub async fn ask_quorum(raft: &Raft) {
    let _: Result<(), Fatal<TypeConfig>> = raft.trigger().heartbeat().await;
}

/// Waits until Raft has stopped by itself, and says why. Cancel safe.
pub async fn stopped(raft: &Raft) -> String {
    // These change seldom, while every entry changes `metrics`; both end with the core.
    let mut server = raft.server_metrics();
    while server.changed().await.is_ok() {}
    match &raft.metrics().borrow_watched().running_state {
        Err(fatal) => fatal.to_string(),
        Ok(()) => "its core has ended".to_owned(),
    }
}
