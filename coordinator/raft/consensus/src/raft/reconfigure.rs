//! The leader's part of a reconfiguration in ZooKeeper's terms: checks that the new configuration will have a
//! quorum, adds new members as learners, and changes the voters by joint consensus.
//!
//! In the flow: called through `reconfig` on the client's node, and the control lane. A leader that will not
//! vote any more first transfers the leadership, and the client's node repeats the request to the next
//! leader.
//!
//! Invariant: no change begins that cannot finish. Without a majority of the future voters and all new ones
//! among them, alive and caught up, nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::Precondition;
use openraft::storage::RaftStateMachine;
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_wal::entry::Member;

use super::elections::Leadership;
use super::state_machine::StateMachine;
use crate::peer::{Lane, PeerPool, Refusal, Request};
use crate::raft_types::{LogId, StoredMembership, TypeConfig};
use crate::reconfiguration::{Members, Wanted};

/// Deadline of a change; a slower one has lost its quorum.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline for new members to answer a probe.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);
/// Deadline for the new voters to catch up.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(10);
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Longest silence of a live member.
pub(super) const ALIVE_WITHIN: Duration = Duration::from_secs(2);

// Checks that a probe ends within the time of the whole change.
const _: () = assert!(PROBE_DEADLINE.as_millis() < CHANGE_DEADLINE.as_millis());
const _: () = assert!(CHECK_EVERY.as_millis() < CATCH_UP_DEADLINE.as_millis());

/// Changes the membership while this node leads, one change at a time. `M` is the state machine.
pub struct Reconfigurer<M: RaftStateMachine<TypeConfig> = StateMachine> {
    me: NodeId,
    raft: openraft::Raft<TypeConfig, M>,
    leadership: watch::Receiver<Leadership>,
    peers: PeerPool,
    /// Shortest silence after which a follower stands for election.
    election_timeout: Duration,
    busy: AtomicBool,
}

/// Failure of a step.
enum Failed {
    Code(ErrorCode),
    /// Another node leads, or the outcome is open: see `PeerService::reconfigure`.
    Refused(Refusal),
}

struct Busy<'a>(&'a AtomicBool);

/// Formats node numbers as text: `1,2,3`.
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
        election_timeout: Duration,
    ) -> Self {
        Reconfigurer { me, raft, leadership, peers, election_timeout, busy: AtomicBool::new(false) }
    }

    /// Changes the membership: see [`crate::peer::PeerService::reconfigure`]. Cancellation may leave the
    /// change half done: new members are learners, or the voters are changed and removed ones are still
    /// learners.
    pub async fn reconfigure(&self, wanted: &Wanted) -> Result<Result<u64, ErrorCode>, Refusal> {
        match self.try_reconfigure(wanted).await {
            Ok(index) => Ok(Ok(index)),
            Err(Failed::Code(code)) => Ok(Err(code)),
            Err(Failed::Refused(refusal)) => Err(refusal),
        }
    }

    /// Completes a change of voters that a former leader left unfinished: until then both majorities are
    /// needed. Does nothing on other nodes, or during another change.
    pub async fn finish_interrupted(&self) {
        let view = *self.leadership.borrow();
        if !view.is_led_by(self.me) || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let _busy = Busy(&self.busy);
        let Ok(stored) = self.membership() else { return };
        if decides!("change-was-interrupted", is_joint(&stored)) {
            let voters = members(&stored).voters;
            tracing::info!(voters = ids(&voters), "membership change of a former leader is completed");
            let raw = voters.iter().map(|id| id.0).collect();
            // Former voters stay as learners, since the former leader's request is unknown. After a failure
            // the next turn tries again.
            let _ = self.change(ChangeMembers::ReplaceAllVoters(raw), true, *stored.log_id()).await;
        }
    }

    async fn try_reconfigure(&self, wanted: &Wanted) -> Result<u64, Failed> {
        let view = *self.leadership.borrow();
        if decides!("change-reaches-no-leader", !view.is_led_by(self.me)) {
            return Err(Failed::Refused(Refusal::NotLeader {
                leader: view.leader.filter(|l| *l != self.me),
            }));
        }
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        let _busy = Busy(&self.busy);
        let stored = self.membership()?;
        if decides!("change-is-underway", is_joint(&stored)) {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        let version = stored.log_id().as_ref().map_or(0, |id| id.index);
        if decides!(
            "config-version-differs",
            wanted.config_id != -1 && u64::try_from(wanted.config_id) != Ok(version)
        ) {
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
        let based_on = self.prepare(&current, &target, &stored).await?;
        if !target.voters.contains(&self.me) {
            self.hand_over(&current, &target).await?;
        }
        self.carry_out(&current, &target, based_on).await
    }

    /// Returns the membership in force, unless a change is in progress.
    fn membership(&self) -> Result<StoredMembership, Failed> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if decides!(
            "members-are-not-committed",
            metrics.membership_config.log_id() != metrics.committed_membership_config.log_id()
        ) {
            return Err(Failed::Code(ErrorCode::ReconfigInProgress));
        }
        Ok((*metrics.membership_config).clone())
    }

    /// Returns the future voters that are alive and have stored the log up to `index`.
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
        let has_all =
            |node: &&NodeId| decides!("voter-is-synced", **node == self.me || (alive(node) && stored(node)));
        let synced: BTreeSet<NodeId> = voters.iter().filter(has_all).copied().collect();
        assert!(synced.is_subset(voters), "only voters count for a quorum");
        synced
    }

    /// Returns the position of the membership to change, once all new voters and a majority of the future
    /// voters have caught up. Future voters that are no members become learners for this.
    ///
    /// # Errors
    /// `NewConfigNoQuorum`: they do not answer, or have not caught up in time; nothing was changed.
    async fn prepare(
        &self,
        current: &Members,
        target: &Members,
        stored: &StoredMembership,
    ) -> Result<Option<LogId>, Failed> {
        let new: BTreeSet<NodeId> = target.voters.difference(&current.voters).copied().collect();
        let strangers = new.iter().filter(|id| !current.nodes.contains_key(id));
        let there = self.probe(strangers.map(|id| (*id, &target.nodes[id]))).await;
        // Live members can catch up.
        let alive: BTreeSet<NodeId> = self.synced(&target.voters, 0).union(&there).copied().collect();
        if decides!("majority-would-be-away", alive.len() * 2 <= target.voters.len())
            || decides!("new-voter-is-away", !new.is_subset(&alive))
        {
            tracing::info!(alive = ids(&alive), to = ids(&target.voters), "future voters do not answer");
            return Err(Failed::Code(ErrorCode::NewConfigNoQuorum));
        }
        let mut based_on = *stored.log_id();
        if !there.is_empty() {
            let nodes = there.iter().map(|id| (id.0, target.nodes[id].clone())).collect();
            based_on = Some(self.change(ChangeMembers::AddNodes(nodes), true, based_on).await?);
        }
        if self.catch_up(&new, &target.voters).await {
            return Ok(based_on);
        }
        if !there.is_empty() {
            let added = there.iter().map(|id| id.0).collect();
            self.change(ChangeMembers::RemoveNodes(added), true, based_on).await?;
        }
        Err(Failed::Code(ErrorCode::NewConfigNoQuorum))
    }

    /// Waits until the `new` voters, and a majority of the future `voters`, have caught up (Ongaro's thesis,
    /// section 4.2.1). In each round they store the log up to its end at the begin of the round. The last
    /// round is shorter than an election timeout: new voters that lack more would stop commits for that long.
    /// Returns false after the deadline.
    async fn catch_up(&self, new: &BTreeSet<NodeId>, voters: &BTreeSet<NodeId>) -> bool {
        let deadline = Instant::now() + CATCH_UP_DEADLINE;
        let (mut begun, mut end) = (Instant::now(), self.last_index());
        loop {
            let (now, synced) = (Instant::now(), self.synced(voters, end));
            let is_over = new.is_subset(&synced) && synced.len() * 2 > voters.len();
            if decides!("round-is-short", is_over && now.saturating_since(begun) < self.election_timeout) {
                return true;
            }
            if now >= deadline {
                let late: BTreeSet<NodeId> = voters.difference(&synced).copied().collect();
                tracing::warn!(late = ids(&late), log_end = end, "future voters have not caught up in time");
                return false;
            }
            if is_over {
                rare::taken(Rare::CatchUpRound);
                (begun, end) = (now, self.last_index());
            }
            time::sleep(CHECK_EVERY).await;
        }
    }

    fn last_index(&self) -> u64 {
        self.raft.metrics().borrow_watched().last_log_index.unwrap_or(0)
    }

    /// Returns the nodes among these non-members that answer at their addresses.
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

    /// Transfers the leadership to a voter that stays a voter after the change. Without such a voter this
    /// node continues.
    async fn hand_over(&self, current: &Members, target: &Members) -> Result<(), Failed> {
        let index = self.last_index();
        let stay: BTreeSet<NodeId> = target.voters.intersection(&current.voters).copied().collect();
        let Some(next) = self.synced(&stay, index).into_iter().find(|id| *id != self.me) else {
            return Ok(());
        };
        tracing::info!(to = %next, "handing leadership over before leaving the voters");
        // The repeated request shows whether the transfer succeeded.
        let _ = self.raft.trigger().transfer_leader(next.0).await;
        Err(Failed::Refused(Refusal::NotLeader { leader: None }))
    }

    /// Changes the membership at `based_on`, and no other one: another leader may have changed the members
    /// while the new voters caught up.
    async fn carry_out(
        &self,
        current: &Members,
        target: &Members,
        based_on: Option<LogId>,
    ) -> Result<u64, Failed> {
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
        // Leaving voters are removed in this step, unless one stays as a learner: Raft treats all leaving
        // voters alike.
        let mut changed = self.change(ChangeMembers::Batch(batch), demoted, based_on).await?;
        if demoted && !leaving_voters.is_empty() {
            changed = self.change(ChangeMembers::RemoveNodes(leaving_voters), true, Some(changed)).await?;
        }
        Ok(changed.index)
    }

    /// Changes the membership whose entry is `based_on`. Returns the position of the new one.
    async fn change(
        &self,
        change: ChangeMembers<u64, Member>,
        retain: bool,
        based_on: Option<LogId>,
    ) -> Result<LogId, Failed> {
        let based_on = Precondition::LastMembershipLogId { last_membership_log_id: based_on };
        let changing = self.raft.change_membership_if(change, retain, [based_on]);
        match time::timeout(CHANGE_DEADLINE, changing).await {
            Ok(Ok(done)) => Ok(done.log_id),
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

/// Returns whether a change of voters is unfinished.
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
