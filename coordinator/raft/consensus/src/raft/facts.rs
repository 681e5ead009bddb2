//! State of Raft and requests to Raft, in the node's own terms: no module outside this folder has to name
//! openraft.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::errors::{Fatal, LinearizableReadError, RaftError};
use openraft::raft::ReadPolicy;
use openraft::storage::RaftStateMachine;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::time::Instant;
use rowlock_metrics::Role;
use rowlock_proto::NodeId;
use rowlock_wal::entry::Member;

use super::open::Raft;
use crate::node_hook::Position;
use crate::raft_types::{LogId, StoredMembership, TypeConfig, position};
use crate::reconfiguration::Members;

/// State of this node in Raft.
#[derive(Clone, Debug)]
pub struct Facts {
    pub role: Role,
    pub term: u64,
    pub leader: Option<NodeId>,
    pub last_index: Option<u64>,
    /// Log index up to which this node has applied, 0 for none.
    pub applied_index: u64,
    /// Log index up to which this node knows the log to be committed, 0 for none. A new leader may know less.
    pub committed_index: u64,
    /// Log index of the last snapshot, 0 for none.
    pub snapshot_index: u64,
    /// Log index up to which the log was purged, 0 for none.
    pub purged_index: u64,
    /// Position of the newest membership in the log.
    pub members_at: Option<Position>,
    /// Log index up to which each other member has stored the log. Empty unless this node leads.
    pub replicated: Vec<(NodeId, u64)>,
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
        members_at: raft.membership_config.log_id().map(position),
        replicated: raft.replication.iter().flatten().map(|(node, id)| (NodeId(*node), index(id))).collect(),
    }
}

/// Returns the newest membership in the log, with its position.
pub fn members(raft: &Raft) -> (Members, Option<Position>) {
    let metrics = raft.metrics();
    let stored = &metrics.borrow_watched().membership_config;
    (members_of(stored), stored.log_id().map(position))
}

fn members_of(stored: &StoredMembership) -> Members {
    let membership = stored.membership();
    let nodes = membership.nodes().map(|(node, member)| (NodeId(*node), member.clone())).collect();
    Members { nodes, voters: membership.voter_ids().map(NodeId).collect() }
}

/// Returns the log index (0 for none) of the committed membership. `None` during a change of voters.
pub fn settled_at(raft: &Raft) -> Option<u64> {
    settled(&raft.metrics().borrow_watched())
}

fn settled(metrics: &RaftMetrics<TypeConfig>) -> Option<u64> {
    let committed = &metrics.committed_membership_config;
    let is_settled = committed.membership().get_joint_config().len() == 1;
    is_settled.then(|| committed.log_id().as_ref().map_or(0, |id| id.index))
}

/// Returns the committed membership and its log index (0 for none). `None` during a change of voters.
pub fn settled_members(raft: &Raft) -> Option<(Members, u64)> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    settled(&metrics).map(|index| (members_of(&metrics.committed_membership_config), index))
}

/// A started node's knowledge of its own log: the present state, not the last report.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Voters of the newest membership in the log.
    pub voters: BTreeSet<NodeId>,
    /// Log index of that membership.
    pub members_at: Option<u64>,
    pub last_index: Option<u64>,
    pub term: u64,
}

/// Returns the state found at the start.
///
/// # Errors
/// Raft has stopped; the error is the reason.
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

/// Returns the term in which this node leads and the last index of its log, both as of now. `None`: another
/// node leads, or Raft has stopped.
pub async fn leads_with<SM: RaftStateMachine<TypeConfig>>(
    raft: &openraft::Raft<TypeConfig, SM>,
) -> Option<(u64, u64)> {
    let state = raft.with_raft_state(|state| {
        let last = state.log_ids.last().copied()?;
        let leads = state.server_state == ServerState::Leader && last.leader_id == state.vote_ref().leader_id;
        assert!(last.leader_id <= state.vote_ref().leader_id, "no entry is of a later term than the vote");
        leads.then_some((last.leader_id.term, last.index))
    });
    state.await.ok().flatten()
}

/// Returns the leader known to this node.
pub fn leader(raft: &Raft) -> Option<NodeId> {
    raft.metrics().borrow_watched().current_leader.map(NodeId)
}

/// Returns the log index up to which this node has applied, 0 for none.
pub fn applied_index(raft: &Raft) -> u64 {
    raft.metrics().borrow_watched().last_applied.as_ref().map_or(0, |id| id.index)
}

/// Returns whether `node` is a member, voting or not, by this node's log.
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

/// Returns whether this node knows no other member.
pub fn is_alone(raft: &Raft) -> bool {
    let metrics = raft.metrics();
    let known = metrics.borrow_watched();
    known.membership_config.membership().nodes().count() <= 1
}

/// Returns whether this node has applied a membership that includes `node`. Unlike a membership in the log,
/// which may come from a deposed leader, an applied one is final.
pub fn has_joined(raft: &Raft, node: NodeId) -> bool {
    has_applied_member(&raft.metrics().borrow_watched(), node)
}

pub(super) fn has_applied_member(metrics: &RaftMetrics<TypeConfig>, node: NodeId) -> bool {
    let (known, applied) = (&metrics.membership_config, &metrics.last_applied);
    let is_applied = known.log_id().as_ref().map(|at| at.index) <= applied.as_ref().map(|last| last.index);
    is_applied && known.membership().get_node(&node.0).is_some()
}

/// Returns the other voters that acknowledged a request `within` this time, with the index up to which each
/// has stored the log. Called on the leader.
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

/// Returns the other members, voters and learners, that acknowledged a request `within` this time. Called on
/// the leader.
pub fn alive_members(raft: &Raft, within: Duration) -> BTreeSet<NodeId> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let now = Instant::now();
    let acked = metrics.heartbeat.iter().flatten().filter_map(|(node, at)| Some((*node, (*at)?)));
    let alive = acked.filter(|(_, at)| now.saturating_since(at.into_inner().into()) <= within);
    alive.map(|(node, _)| NodeId(node)).collect()
}

/// Forms a cluster of these voters. The error is the reason, for example an existing cluster.
pub async fn form(raft: &Raft, voters: BTreeMap<NodeId, Member>) -> Result<(), String> {
    let voters: BTreeMap<u64, Member> = voters.into_iter().map(|(node, member)| (node.0, member)).collect();
    raft.initialize(voters).await.map_err(|error| error.to_string())
}

/// Reason why Raft refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    NotLeader,
    /// The leader has no contact to a quorum.
    NoQuorum,
    Invalid(String),
    Stopped,
}

/// Adds a node as a learner. Returns the log index of the committed change.
pub async fn add_learner(raft: &Raft, node: NodeId, member: Member) -> Result<u64, NotDone> {
    let change = ChangeMembers::AddNodes(BTreeMap::from([(node.0, member)]));
    match raft.change_membership(change, true).await {
        Ok(done) => Ok(done.log_id.index),
        Err(error) if error.forward_to_leader().is_some() => Err(NotDone::NotLeader),
        Err(error) => Err(NotDone::Invalid(error.to_string())),
    }
}

/// Returns the log index that a linearizable read must wait for, confirmed by a quorum. Never by the lease: a
/// voter that restarted quickly may have voted for another leader.
pub async fn read_index(raft: &Raft) -> Result<u64, NotDone> {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(NotDone::NoQuorum),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(NotDone::NotLeader),
        Err(RaftError::Fatal(_)) => Err(NotDone::Stopped),
    }
}

/// Asks another node to lead. The leadership shows whether the transfer succeeded.
pub async fn hand_over(raft: &Raft, to: NodeId) {
    let _: Result<(), Fatal<TypeConfig>> = raft.trigger().transfer_leader(to.0).await;
}

/// Sends a heartbeat, so that the quorum acknowledges this leader now. Has no effect after Raft has stopped.
pub async fn contact_quorum(raft: &Raft) {
    let _: Result<(), Fatal<TypeConfig>> = raft.trigger().heartbeat().await;
}

/// Waits until Raft has stopped by itself, and returns the reason. Cancel safe.
pub async fn stopped(raft: &Raft) -> String {
    // The server metrics change seldom, while every entry changes `metrics`; both end with the core.
    let mut server = raft.server_metrics();
    while server.changed().await.is_ok() {}
    match &raft.metrics().borrow_watched().running_state {
        Err(fatal) => fatal.to_string(),
        Ok(()) => "its core has ended".to_owned(),
    }
}
