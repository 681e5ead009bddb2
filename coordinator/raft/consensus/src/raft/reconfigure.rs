//! The leader's part of a reconfiguration in ZooKeeper's terms: checks that the new configuration will have a
//! quorum, takes new members in as learners, and changes the voters by joint consensus.
//!
//! In the flow: reached through `reconfig` on the node that a client asked, and the control lane. A leader
//! that is not to vote any more hands leadership over first, and the question is asked again of the next one.
//!
//! Must never do: begin what cannot finish. Without a majority of the new voters, alive and caught up,
//! nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::Precondition;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_types::member::Member;
use rowlock_types::reconfiguration::{Members, Wanted};

use super::leadership::Leadership;
use super::state_machine::StateMachine;
use crate::peer::{Lane, PeerPool, Refusal, Request};
use crate::raft_types::{LogId, StoredMembership, TypeConfig};

/// A change that takes longer has no quorum any more.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);
/// For new members to say that they are there.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);
/// For new members to catch up, so that there is a quorum of the new voters.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A member that has acknowledged nothing for so long does not count as alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);

// Who is asked whether it lives answers within the time of the whole change.
const _: () = assert!(PROBE_DEADLINE.as_millis() < CHANGE_DEADLINE.as_millis());
const _: () = assert!(LOOK_EVERY.as_millis() < CATCH_UP_DEADLINE.as_millis());

/// Changes the membership while this node leads, one change at a time. `M` is the state machine.
pub struct Reconfigurer<M: RaftStateMachine<TypeConfig> = StateMachine> {
    me: NodeId,
    raft: openraft::Raft<TypeConfig, M>,
    leadership: watch::Receiver<Leadership>,
    peers: PeerPool,
    busy: AtomicBool,
}

/// Why a step did not succeed.
enum Failed {
    /// Refused, with nothing done.
    Code(ErrorCode),
    /// Another node must be asked, or the outcome is open: see `PeerService::reconfigure`.
    Refused(Refusal),
}

struct Busy<'a>(&'a AtomicBool);

/// Node numbers as text: `1,2,3`.
fn ids(nodes: &BTreeSet<NodeId>) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let was_busy = self.0.swap(false, Ordering::Release);
        debug_assert!(was_busy, "one change at a time");
    }
}

impl<M: RaftStateMachine<TypeConfig>> Reconfigurer<M> {
    pub fn new(
        me: NodeId,
        raft: openraft::Raft<TypeConfig, M>,
        leadership: watch::Receiver<Leadership>,
        peers: PeerPool,
    ) -> Self {
        Reconfigurer { me, raft, leadership, peers, busy: AtomicBool::new(false) }
    }

    /// See [`crate::peer::PeerService::reconfigure`]. Cancelling it may leave the change half done: new
    /// members are learners then, or the voters are changed and who left is still a learner.
    pub async fn reconfigure(&self, wanted: &Wanted) -> Result<Result<u64, ErrorCode>, Refusal> {
        match self.try_reconfigure(wanted).await {
            Ok(index) => Ok(Ok(index)),
            Err(Failed::Code(code)) => Ok(Err(code)),
            Err(Failed::Refused(refusal)) => Err(refusal),
        }
    }

    /// Ends a change of voters that a former leader began and did not live to end: until then both majorities
    /// are needed. Does nothing on other nodes, or while a change is under way.
    pub async fn finish_interrupted(&self) {
        let view = *self.leadership.borrow();
        if !view.is_led_by(self.me) || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let _busy = Busy(&self.busy);
        let Ok(stored) = self.membership() else { return };
        if is_joint(&stored) {
            let voters = members(&stored).voters;
            tracing::info!(voters = ids(&voters), "membership change of a former leader is completed");
            let raw = voters.iter().map(|id| id.0).collect();
            // Who does not vote any more stays as a learner, since it is unknown what the former leader was
            // asked. If this fails, the next turn tries again.
            let _ = self.change(ChangeMembers::ReplaceAllVoters(raw), true, Some(*stored.log_id())).await;
        }
    }

    async fn try_reconfigure(&self, wanted: &Wanted) -> Result<u64, Failed> {
        let view = *self.leadership.borrow();
        if !view.is_led_by(self.me) {
            return Err(Failed::Refused(Refusal::NotLeader {
                leader: view.leader.filter(|l| *l != self.me),
            }));
        }
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        let _busy = Busy(&self.busy);
        let stored = self.membership()?;
        if is_joint(&stored) {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        let version = stored.log_id().as_ref().map_or(0, |id| id.index);
        if wanted.config_id != -1 && u64::try_from(wanted.config_id) != Ok(version) {
            return Err(Failed::Code(ErrorCode::BadVersion));
        }
        let current = members(&stored);
        let target = wanted.change().and_then(|change| change.apply(&current)).map_err(Failed::Code)?;
        tracing::info!(
            from = ids(&current.voters),
            to = ids(&target.voters),
            joining = wanted.joining.as_deref().unwrap_or(""),
            leaving = wanted.leaving.as_deref().unwrap_or(""),
            "membership change begins"
        );
        self.ensure_quorum(&current, &target, &stored).await?;
        if !target.voters.contains(&self.me) {
            self.hand_over(&current, &target).await?;
        }
        self.carry_out(&current, &target).await
    }

    /// The membership in force, unless a change is under way.
    fn membership(&self) -> Result<StoredMembership, Failed> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.membership_config.log_id() != metrics.committed_membership_config.log_id() {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        Ok((*metrics.membership_config).clone())
    }

    /// Voters to be that are alive and have stored the log up to `index`.
    fn synced(&self, voters: &BTreeSet<NodeId>, index: u64) -> BTreeSet<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let now = Instant::now();
        let alive = |node: &NodeId| {
            let acked = metrics.heartbeat.as_ref().and_then(|nodes| nodes.get(&node.0)).cloned().flatten();
            acked.is_some_and(|at| now.saturating_since(at.into_inner().into()) <= ALIVE_WITHIN)
        };
        let stored = |node: &NodeId| {
            let matching =
                metrics.replication.as_ref().and_then(|nodes| nodes.get(&node.0)).cloned().flatten();
            matching.map_or(0, |id: LogId| id.index) >= index
        };
        let has_all = |node: &&NodeId| **node == self.me || (alive(node) && stored(node));
        let synced: BTreeSet<NodeId> = voters.iter().filter(has_all).copied().collect();
        assert!(synced.is_subset(voters), "only voters count for a quorum");
        synced
    }

    /// `NewConfigNoQuorum` unless a majority of the new voters is there or can be got there in time.
    async fn ensure_quorum(
        &self,
        current: &Members,
        target: &Members,
        stored: &StoredMembership,
    ) -> Result<(), Failed> {
        let majority = |nodes: usize| nodes * 2 > target.voters.len();
        let index = self.raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        let synced = self.synced(&target.voters, index);
        if majority(synced.len()) {
            return Ok(());
        }
        let strangers = target.voters.iter().filter(|id| !current.nodes.contains_key(id));
        let there = self.probe(strangers.map(|id| (*id, &target.nodes[id]))).await;
        // Members that are alive can catch up.
        let alive = self.synced(&target.voters, 0);
        if !majority(alive.union(&there).count()) {
            return Err(Failed::Code(ErrorCode::NewConfigNoQuorum));
        }
        let nodes = there.iter().map(|id| (id.0, target.nodes[id].clone())).collect();
        let before = *stored.log_id();
        self.change(ChangeMembers::AddNodes(nodes), true, Some(before)).await?;
        let deadline = Instant::now() + CATCH_UP_DEADLINE;
        while !majority(self.synced(&target.voters, index).len()) {
            if Instant::now() >= deadline {
                let added = there.iter().map(|id| id.0).collect();
                self.change(ChangeMembers::RemoveNodes(added), true, None).await?;
                return Err(Failed::Code(ErrorCode::NewConfigNoQuorum));
            }
            time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Which of these nodes, that are no members yet, answer at their addresses.
    async fn probe(&self, nodes: impl Iterator<Item = (NodeId, &Member)>) -> BTreeSet<NodeId> {
        let deadline = Instant::now() + PROBE_DEADLINE;
        let calls = nodes.map(|(id, member)| {
            let peer = self.peers.set_address(id, &member.dial_addr());
            async move {
                let answer = peer.call(Lane::Control, &Request::Status, deadline).await;
                if answer.is_err() {
                    self.peers.remove(id);
                }
                answer.is_ok().then_some(id)
            }
        });
        futures_util::future::join_all(calls).await.into_iter().flatten().collect()
    }

    /// Makes another voter the leader that will still be one after the change. Without such a voter this node
    /// goes on.
    async fn hand_over(&self, current: &Members, target: &Members) -> Result<(), Failed> {
        let index = self.raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        let stay: BTreeSet<NodeId> = target.voters.intersection(&current.voters).copied().collect();
        let Some(next) = self.synced(&stay, index).into_iter().find(|id| *id != self.me) else {
            return Ok(());
        };
        tracing::info!(to = %next, "handing leadership over before leaving the voters");
        // Whether it succeeds shows in who leads when the question comes again.
        let _ = self.raft.trigger().transfer_leader(next.0).await;
        Err(Failed::Refused(Refusal::NotLeader { leader: None }))
    }

    async fn carry_out(&self, current: &Members, target: &Members) -> Result<u64, Failed> {
        let leaves = |id: &&NodeId| !target.nodes.contains_key(id);
        let raw = |ids: Vec<&NodeId>| ids.into_iter().map(|id| id.0).collect::<BTreeSet<u64>>();
        let leaving_voters = raw(current.voters.iter().filter(leaves).collect());
        let leaving_learners: BTreeSet<u64> =
            raw(current.nodes.keys().filter(leaves).filter(|id| !current.voters.contains(id)).collect());
        assert!(leaving_voters.is_disjoint(&leaving_learners), "a member leaves once");
        let demoted =
            current.voters.iter().any(|id| target.nodes.contains_key(id) && !target.voters.contains(id));
        let changed: BTreeMap<u64, Member> = target
            .nodes
            .iter()
            .filter(|(id, member)| current.nodes.get(id) != Some(member))
            .map(|(id, member)| (id.0, member.clone()))
            .collect();
        let batch = vec![
            ChangeMembers::SetNodes(changed),
            ChangeMembers::ReplaceAllVoters(raw(target.voters.iter().collect())),
            ChangeMembers::RemoveNodes(leaving_learners),
        ];
        // Voters that leave are removed on the way, unless one is to stay as a learner: Raft does the same
        // with all.
        let index = self.change(ChangeMembers::Batch(batch), demoted, None).await?;
        if !demoted || leaving_voters.is_empty() {
            return Ok(index);
        }
        self.change(ChangeMembers::RemoveNodes(leaving_voters), true, None).await
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, Member>,
        retain: bool,
        based_on: Option<Option<LogId>>,
    ) -> Result<u64, Failed> {
        let based_on = based_on.map(|id| Precondition::LastMembershipLogId { last_membership_log_id: id });
        let changing = self.raft.change_membership_if(change, retain, based_on);
        match time::timeout(CHANGE_DEADLINE, changing).await {
            Ok(Ok(done)) => Ok(done.log_id.index),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(Failed::Refused(Refusal::NoQuorum)),
        }
    }
}

fn failed(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Failed {
    tracing::info!(%error, "the membership was not changed");
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => {
            Failed::Refused(Refusal::NotLeader { leader: None })
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => match error {
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => {
                Failed::Code(ErrorCode::ReconfigInProgress)
            }
            _ => Failed::Code(ErrorCode::BadArguments),
        },
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => {
            Failed::Code(ErrorCode::ReconfigInProgress)
        }
        // The entry may have been replicated: the outcome is open.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) | RaftError::Fatal(_) => {
            Failed::Refused(Refusal::NoQuorum)
        }
    }
}

/// A change of voters has begun and not ended.
fn is_joint(stored: &StoredMembership) -> bool {
    stored.membership().get_joint_config().len() > 1
}

fn members(stored: &StoredMembership) -> Members {
    let membership = stored.membership();
    let voters = membership.get_joint_config().last().into_iter().flatten();
    Members {
        nodes: membership.nodes().map(|(id, member)| (NodeId(*id), member.clone())).collect(),
        voters: voters.map(|id| NodeId(*id)).collect(),
    }
}
