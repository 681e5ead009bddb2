//! Elections, replacing openraft's timer.
//!
//! In the flow: [`LeaderLease`] records when the leader was heard; this task asks the other voters whether
//! they would vote for this node (Pre-Vote: Ongaro's thesis, section 9.6), and starts openraft's election
//! after a majority agreed. openraft's own timer starts a term after each timeout, even if the votes of the
//! last term cannot be on disk by then: with slow disks no election succeeds. Here each round waits twice as
//! long as the previous one, and longer on a disk with slower flushes.
//!
//! Invariant: no term begins unless a majority of the voters has confirmed the end of its leader's lease.
//!
//! The current leader, and the moment from which a leader may propose.
//!
//! A fresh leader answers `ForwardToLeader { leader: None }` until a quorum has acknowledged the leadership,
//! and no error of a write proves that the write was lost. So a new leader first commits an entry that is
//! safe to repeat (an empty batch), retrying as often as needed; only then is the leader `ready`, and
//! clients' commands enter the log.

use std::collections::BTreeSet;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use openraft::storage::RaftStateMachine;
use openraft::{RaftMetrics, ServerState};
use openraft_rt::watch::WatchReceiver as _;
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::{decides, rng, time};
use rowlock_proto::NodeId;
use rowlock_state::command::Batch;
use rowlock_wal::Memory;
use rowlock_wal::entry::Member;

use super::Raft;
use super::lease::LeaderLease;
use super::open::Admission;
use super::recollection::Recollection;
use crate::config::RaftConfig;
use crate::node_hook::Hook;
use crate::peer::{Lane, PeerPool, Request, Response};
use crate::raft_types::{Payload, RaftRequest, RaftResponse, TypeConfig, Vote, VoteRequest};

/// First pause after a majority refused; doubled each time up to `ASK_PAUSE_MAX`. A random factor of up to
/// two keeps nodes from asking at the same moment and splitting the vote.
const ASK_PAUSE: Duration = Duration::from_millis(10);
const ASK_PAUSE_MAX: Duration = Duration::from_millis(160);
/// Deadline of a pre-vote, or two heartbeats if longer. A reachable voter that does not flush answers in
/// time.
const ASK_PATIENCE: Duration = Duration::from_millis(150);
/// Longest candidacy without a vote request or a leader: openraft has ignored the election.
const CANDIDACY_MAX: Duration = Duration::from_secs(30);

pub struct Elections<SM: RaftStateMachine<TypeConfig>> {
    pub raft: openraft::Raft<TypeConfig, SM>,
    pub peers: PeerPool,
    pub lease: LeaderLease,
    pub admission: Admission,
    pub recollection: Recollection,
    pub timers: RaftConfig,
}

/// Outcome of an election, as the answers to a pre-vote predict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prospect {
    Loses,
    /// A quorum that remembers would vote for this node.
    Wins,
    /// A quorum would vote for this node only to restart the cluster, and none refuses: a node that refuses
    /// hears a leader, or has more entries and stands itself. `is_only`: no quorum can remember.
    WinsRestart {
        is_only: bool,
    },
}

/// This node's role in the cluster, by the newest membership in its log.
struct View {
    leads: bool,
    is_voter: bool,
    term: u64,
    leader: Option<u64>,
    /// Sets of voters that need a majority each: two while the voters change.
    sets: Vec<BTreeSet<u64>>,
    others: Vec<(NodeId, Member)>,
}

impl View {
    fn of(metrics: &RaftMetrics<TypeConfig>) -> View {
        let me = metrics.id;
        let newest = metrics.membership_config.membership();
        let committed = metrics.committed_membership_config.membership();
        let voters: BTreeSet<u64> = newest.voter_ids().collect();
        let others = newest.nodes().filter(|(node, _)| voters.contains(node) && **node != me);
        View {
            leads: metrics.state == ServerState::Leader,
            is_voter: voters.contains(&me) || committed.voter_ids().any(|voter| voter == me),
            term: metrics.current_term,
            leader: metrics.current_leader,
            sets: newest.get_joint_config().clone(),
            others: others.map(|(node, member)| (NodeId(*node), member.clone())).collect(),
        }
    }

    fn is_majority(&self, granted: &BTreeSet<u64>) -> bool {
        let in_set = |set: &BTreeSet<u64>| set.intersection(granted).count() > set.len() / 2;
        decides!("votes-are-majority", !self.sets.is_empty() && self.sets.iter().all(in_set))
    }

    /// Returns whether the voters that have not forgotten can be a majority.
    fn may_remember(&self, forgotten: &BTreeSet<u64>) -> bool {
        let in_set = |set: &BTreeSet<u64>| set.difference(forgotten).count() > set.len() / 2;
        self.sets.iter().all(in_set)
    }
}

impl<SM: RaftStateMachine<TypeConfig>> Elections<SM> {
    /// Runs until Raft stops. Must be started only once.
    pub async fn run(self) {
        let (mut refusals, mut rounds, mut followed, mut known) = (0, 0, None, 0);
        let mut restart_since: Option<time::Instant> = None;
        while let Some(view) = self.is_due().await {
            let (leader, _) = self.lease.latest();
            if leader != followed {
                (followed, refusals, rounds) = (leader, 0, 0);
            }
            let prospect = self.would_win(&view, refusals, &mut known).await;
            let restarts = matches!(prospect, Prospect::WinsRestart { .. });
            restart_since = restarts.then(|| restart_since.unwrap_or_else(time::now));
            let is_ready = match prospect {
                Prospect::Loses => false,
                Prospect::Wins => true,
                // A voter that remembers may come back, and nothing is forgotten then.
                Prospect::WinsRestart { is_only } => {
                    is_only || restart_since.is_some_and(|since| since.elapsed() >= self.patience())
                }
            };
            if decides!("candidate-would-lose", !is_ready) {
                let pause = ASK_PAUSE.saturating_mul(1 << refusals.min(10)).min(ASK_PAUSE_MAX);
                refusals += 1;
                time::sleep(pause + random_below(pause)).await;
                continue;
            }
            if decides!("another-election-has-begun", self.view().term != view.term) {
                continue;
            }
            tracing::info!(term = view.term + 1, round = rounds, restarts, "election started");
            assert!(!view.leads && view.is_voter, "only a voter that does not lead stands");
            self.lease.stands(view.term + 1);
            if self.begin_election(restarts).await.is_none() {
                return;
            }
            if self.is_decided(&view, rounds).await {
                (refusals, rounds) = (0, 0);
            } else {
                rare::taken(Rare::VotesTooLate);
                rounds += 1;
            }
        }
    }

    /// Returns the wait for voters that remember.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.timers.election_timeout_max_ms)
    }

    /// Begins openraft's election. `None`: Raft has stopped.
    async fn begin_election(&self, restarts: bool) -> Option<()> {
        if !restarts {
            return self.raft.trigger().elect(false).await.ok();
        }
        let _held = self.recollection.voting().await;
        if self.recollection.memory() == Memory::Dropped {
            return Some(());
        }
        let term = self.raft.with_raft_state(|state| state.vote_ref().leader_id.term + 1).await.ok()?;
        tracing::warn!(
            term,
            "voters have lost entries about locks with the power, and no majority remembers: this node stands to restart the \
             cluster, which ends all sessions"
        );
        self.recollection.stands_for_restart(term);
        self.raft.trigger().elect(false).await.ok()?;
        // Raft has voted for this node when it answers.
        self.raft.with_raft_state(|_| ()).await.ok()
    }

    fn view(&self) -> View {
        View::of(&self.raft.metrics().borrow_watched())
    }

    /// Waits until the leader has been silent for a random timeout. `None`: Raft has stopped.
    async fn is_due(&self) -> Option<View> {
        let RaftConfig { election_timeout_min_ms: least, election_timeout_max_ms: greatest, .. } =
            self.timers;
        let timeout = Duration::from_millis(least + rng::below(greatest - least));
        let jitter = random_below(ASK_PAUSE);
        let mut server = self.raft.server_metrics();
        self.admission.granted().await;
        loop {
            let mut changed = self.lease.changes();
            server.borrow_and_update();
            let view = self.view();
            let due = self.lease.due(timeout, jitter);
            let stands_by = decides!("node-stands-by", view.leads || !view.is_voter);
            if !stands_by && (due <= time::now() || view.others.is_empty()) {
                return Some(view);
            }
            tokio::select! {
                biased;
                ended = server.changed() => if ended.is_err() { return None },
                _ = changed.changed() => {}
                () = time::sleep_until(due), if !stands_by => {}
            }
        }
    }

    /// Asks all voters whether they would vote for this node. Returns whether a majority would. Learns the
    /// greatest term of the answers: a voter with an older log that has voted in a later term refuses
    /// earlier ones, and never wins itself.
    async fn would_win(&self, view: &View, refusals: u32, known: &mut u64) -> Prospect {
        let (me, least) = (self.peers.identity().node.0, *known);
        let stood = self.raft.with_raft_state(move |state| {
            let term = state.vote_ref().leader_id.term.max(least) + 1;
            let vote = Vote::new(term, me);
            VoteRequest::new(vote, state.log_ids.last().copied())
        });
        let Ok(request) = stood.await else { return Prospect::Loses };
        let (mut granted, mut answered) = (BTreeSet::from([me]), BTreeSet::from([me]));
        let (mut forgetful, mut forgotten, mut refused) = (BTreeSet::new(), BTreeSet::new(), false);
        match self.recollection.memory() {
            _ if self.recollection.votes_usually() => {}
            Memory::Dropped => return Prospect::Loses,
            _ => {
                granted.clear();
                forgetful.insert(me);
                forgotten.insert(me);
            }
        }
        let patience = ASK_PATIENCE.max(Duration::from_millis(2 * self.timers.heartbeat_ms));
        let deadline = time::now() + patience.saturating_mul(1 << refusals.min(3));
        let mut answers: FuturesUnordered<_> = view
            .others
            .iter()
            .map(|(node, member)| {
                let (peer, request) = (self.peers.set_address(*node, &member.dial_addr()), request.clone());
                async move {
                    let request = Request::Raft(RaftRequest::PreVote(request));
                    (node.0, peer.call(Lane::Heartbeat, &request, deadline).await)
                }
            })
            .collect();
        while !view.is_majority(&granted) {
            match answers.next().await {
                Some((node, Ok(Response::Raft(RaftResponse::Vote(vote))))) => {
                    answered.insert(node);
                    *known = vote.vote.leader_id.term.max(*known);
                    refused |= !vote.vote_granted;
                    if decides!("pre-vote-is-granted", vote.vote_granted) {
                        granted.insert(node);
                    }
                }
                Some((node, Ok(Response::Raft(RaftResponse::ForgetfulVote(vote))))) => {
                    answered.insert(node);
                    forgotten.insert(node);
                    *known = vote.vote.leader_id.term.max(*known);
                    refused |= !vote.vote_granted && vote.last_log_id.is_some();
                    if vote.vote_granted {
                        forgetful.insert(node);
                    }
                }
                Some((node, answer)) => tracing::debug!(node, ?answer, "no answer to a pre-vote"),
                None => break,
            }
            if view.is_majority(&answered) {
                self.lease.majority_answered();
            }
        }
        assert!(granted.is_subset(&answered), "a vote is an answer");
        assert!(forgetful.is_subset(&forgotten) && granted.is_disjoint(&forgotten), "a vote has one purpose");
        let all = granted.union(&forgetful).copied().collect();
        if view.is_majority(&granted) && !forgotten.contains(&me) {
            Prospect::Wins
        } else if !forgetful.is_empty() && !refused && view.is_majority(&all) {
            Prospect::WinsRestart { is_only: !view.may_remember(&forgotten) }
        } else {
            Prospect::Loses
        }
    }

    /// Waits for a leader of a later term than `before`, or for the end of this round. Returns whether there
    /// is a leader.
    async fn is_decided(&self, before: &View, round: u32) -> bool {
        let begun = time::now();
        let mut server = self.raft.server_metrics();
        loop {
            let mut changed = self.lease.changes();
            server.borrow_and_update();
            let view = self.view();
            let (_, heard) = self.lease.latest();
            let hears = decides!(
                "candidate-hears-leader",
                heard.is_some_and(|heard| heard > begun) && self.lease.lasts()
            );
            // Raft ignores the candidacy of a node that has become the leader meanwhile.
            if hears || view.leads || (view.term > before.term && view.leader.is_some()) {
                return true;
            }
            let over = self.lease.round(round).map_or(begun + CANDIDACY_MAX, |(sent, lasts)| sent + lasts);
            if over <= time::now() {
                return false;
            }
            tokio::select! {
                biased;
                ended = server.changed() => if ended.is_err() { return false },
                _ = changed.changed() => {}
                () = time::sleep_until(over) => {}
            }
        }
    }
}

fn random_below(most: Duration) -> Duration {
    Duration::from_micros(rng::below(u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
}

/// A node's view of the leadership. Terms and leaders only move forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Raft term of this view.
    pub term: u64,
    /// Leader of that term, if known.
    pub leader: Option<NodeId>,
    /// This node is that leader and has committed an entry in this term.
    pub ready: bool,
}

impl Leadership {
    /// Returns whether `me` is the leader of this view and may propose.
    pub fn is_led_by(&self, me: NodeId) -> bool {
        assert!(!self.ready || self.leader.is_some(), "a leader that is ready is known");
        decides!("node-leads", self.ready && self.leader == Some(me))
    }
}

const RETRY: Duration = Duration::from_millis(20);
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
const _: () = assert!(RETRY.as_millis() < WRITE_DEADLINE.as_millis());

/// Follows Raft's metrics, publishes the leadership, and opens the gate after this node has become leader.
/// Ends with Raft.
pub async fn follow(me: NodeId, raft: Raft, leadership: watch::Sender<Leadership>, hook: Hook) {
    let mut metrics = raft.server_metrics();
    let mut gate = pin!(None);
    loop {
        let (term, leader) = {
            let now = metrics.borrow_and_update();
            (now.vote.leader_id.term, now.current_leader.map(NodeId))
        };
        let changed = leadership.send_if_modified(|view| {
            assert!(term >= view.term, "a node's term never goes back");
            let changed = (view.term, view.leader) != (term, leader);
            if changed {
                *view = Leadership { term, leader, ready: false };
            }
            changed
        });
        if changed {
            gate.set(None);
            hook.notify(|hook| match leader {
                Some(leader) if leader == me => hook.leads(term),
                _ => hook.follows(term, leader),
            });
        }
        let view = *leadership.borrow();
        let must_open = decides!("leader-is-not-ready", view.leader == Some(me) && !view.ready);
        // Other changes of the metrics leave the gate alone: its batch would be committed a second time.
        if must_open && gate.is_none() {
            gate.set(Some(open_gate(&raft)));
        }
        tokio::select! {
            biased;
            changed = metrics.changed() => if changed.is_err() { return },
            opened = poll_fn(|cx| gate.as_mut().as_pin_mut().map_or(Poll::Pending, |gate| gate.poll(cx))) => {
                gate.set(None);
                leadership.send_if_modified(|view| {
                    let same = opened && (view.term, view.leader) == (term, leader);
                    view.ready |= same;
                    same
                });
            },
        }
    }
}

/// Commits an empty batch, in the first version, which every node reads. The caller drops this future when
/// another node leads, and retries after a failure; an empty batch is safe to repeat.
async fn open_gate(raft: &Raft) -> bool {
    let write = raft.client_write(Payload(Batch::default().encode()));
    match time::timeout(WRITE_DEADLINE, write).await {
        Ok(Ok(_)) => true,
        Ok(Err(e)) => {
            tracing::debug!(error = %e, "not yet able to commit as leader");
            time::sleep(RETRY).await;
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::task::{Shutdown, TaskGroup};

    use super::*;
    use crate::peer::tests::support::identity;
    use crate::raft::tests::support::{Cluster, Machine, leased};
    use crate::raft_types::LeaderId;

    /// Returns the elections of node `id`, whose lease has heard of no leader.
    fn elections(cluster: &Cluster, id: u64) -> Elections<Machine> {
        Elections {
            raft: cluster.nodes[&id].raft.clone(),
            peers: PeerPool::new(identity(id), TaskGroup::new(Shutdown::new())),
            lease: leased().1,
            admission: Admission::open(),
            recollection: Recollection::default(),
            timers: RaftConfig::default(),
        }
    }

    /// Raft learns of the leader by an append, perhaps behind a flush.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_candidacy_is_over_once_a_leader_is_heard() {
        let cluster = Cluster::start(3).await;
        let leader = cluster.form().await;
        let elections = elections(&cluster, leader % 3 + 1);
        let before = elections.view();
        elections.lease.stands(before.term + 1);
        let unheard = time::timeout(CANDIDACY_MAX / 300, elections.is_decided(&before, 0)).await;
        assert_ne!(unheard, Ok(true), "no leader was heard since");
        let hearing = async {
            loop {
                elections.lease.heard(LeaderId { term: before.term, node_id: leader });
                elections.lease.disconnected(leader).expect("it was heard");
                time::sleep(RETRY).await;
            }
        };
        tokio::select! {
            biased;
            is_decided = elections.is_decided(&before, 0) => assert!(is_decided, "a leader is heard"),
            () = hearing => {}
        }
        cluster.stop().await;
    }

    /// Raft takes no candidacy of a leader: no vote request leaves, and the term does not change.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_candidacy_is_over_if_the_node_leads_already() {
        let cluster = Cluster::start(3).await;
        let leader = cluster.form().await;
        let elections = elections(&cluster, leader);
        let before = elections.view();
        elections.lease.stands(before.term + 1);
        let is_decided = time::timeout(CANDIDACY_MAX / 3, elections.is_decided(&before, 0)).await;
        assert!(is_decided.expect("a leader does not wait for its candidacy"));
        cluster.stop().await;
    }
}
