//! When each member last acknowledged this leader, and so when a quorum did.
//!
//! An answer acknowledges the request that it answers, and those sent before it. openraft takes it for an
//! answer to later requests too, if these reach no further into the log (they only say what is committed),
//! since it counts on one request at a time: with requests sent ahead of answers, an old answer read late
//! would pass for a fresh one, and a leader that has been deposed meanwhile would confirm heartbeats. So the
//! streams that know which request is answered keep the times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openraft::RaftMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft_rt::watch::WatchReceiver as _;
use parking_lot::Mutex;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::metrics::Silence;

use super::Raft;
use crate::raft_types::{LeaderId, TypeConfig};

/// One per node; clones share its state.
#[derive(Clone)]
pub struct Acks {
    latest: Arc<Mutex<Latest>>,
    /// Changes with every answer.
    heard: Arc<watch::Sender<()>>,
    /// By member: since when this node knows it as one.
    members: Arc<Mutex<BTreeMap<u64, Instant>>>,
    /// This node's part and the voters, once its Raft runs.
    metrics: Arc<OnceLock<WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>>>,
}

impl Default for Acks {
    fn default() -> Self {
        let heard = Arc::new(watch::channel(()).0);
        Acks { latest: Arc::default(), heard, members: Arc::default(), metrics: Arc::default() }
    }
}

#[derive(Default)]
struct Latest {
    /// Under which leader, which is this node.
    leader: Option<LeaderId>,
    /// When the first answer to that leader came.
    since: Option<Instant>,
    /// Time at which its first heartbeat was about to be sent.
    began: Option<Instant>,
    /// By member: when the latest of its answered requests was about to be sent.
    sent: BTreeMap<u64, Instant>,
    /// By member: up to where it has stored this leader's log.
    stored: BTreeMap<u64, u64>,
}

impl Acks {
    /// Reads this node's part from these metrics of its Raft from now on.
    pub fn follow_raft(&self, metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>) {
        assert!(self.metrics.set(metrics).is_ok(), "a node has one Raft");
    }

    /// While this node leads: its term, and when the latest request that a quorum has acknowledged was about
    /// to be sent.
    pub fn last(&self) -> Option<(u64, Instant)> {
        let metrics: &RaftMetrics<TypeConfig> = &self.metrics.get()?.borrow_watched();
        if !metrics.state.is_leader() {
            return None;
        }
        let configs = metrics.membership_config.membership().get_joint_config();
        let at = self.quorum(metrics.current_term, metrics.id, configs)?;
        Some((metrics.current_term, at))
    }

    /// Returns for how long no quorum has acknowledged `leader`, which is this node and is about to send a
    /// heartbeat.
    pub fn without_quorum(&self, leader: LeaderId) -> Duration {
        let now = time::now();
        let began = {
            let mut latest = self.latest.lock();
            latest.follow(leader);
            if latest.leader != Some(leader) {
                return Duration::ZERO;
            }
            *latest.began.get_or_insert(now)
        };
        let last = self.last().filter(|(term, _)| *term == leader.term).map(|(_, at)| at);
        now.saturating_since(last.map_or(began, |last| last.max(began)))
    }

    /// `member` has accepted a request of this leader, which was not sent before `sent`.
    pub fn note(&self, leader: LeaderId, member: u64, sent: Instant) {
        let mut latest = self.latest.lock();
        latest.follow(leader);
        if latest.leader == Some(leader) {
            latest.since.get_or_insert_with(time::now);
            let at = latest.sent.entry(member).or_insert(sent);
            *at = sent.max(*at);
            assert!(*at >= sent, "the latest acknowledgement counts");
            drop(latest);
            self.heard.send(());
        }
    }

    /// `member` has said that it has stored this leader's log up to `index`.
    pub fn note_stored(&self, leader: LeaderId, member: u64, index: u64) {
        let mut latest = self.latest.lock();
        latest.follow(leader);
        if latest.leader == Some(leader) {
            let stored = latest.stored.entry(member).or_insert(index);
            *stored = index.max(*stored);
            assert!(*stored >= index, "the furthest acknowledgement counts");
        }
    }

    /// Up to where `member` has stored the log of this leader, as far as it has said so.
    pub fn stored(&self, leader: LeaderId, member: u64) -> Option<u64> {
        let latest = self.latest.lock();
        latest.stored.get(&member).copied().filter(|_| latest.leader == Some(leader))
    }

    /// Forgets what `member` has stored: it comes with another data folder.
    fn forget(&self, member: u64) {
        let mut latest = self.latest.lock();
        latest.stored.remove(&member);
        latest.sent.remove(&member);
    }

    /// From now on these are the members. One that is added later has not been silent before.
    fn follow_members(&self, members: &BTreeSet<NodeId>, now: Instant) {
        let mut known = self.members.lock();
        known.retain(|member, _| members.contains(&NodeId(*member)));
        members.iter().for_each(|member| {
            known.entry(member.0).or_insert(now);
        });
        assert_eq!(known.len(), members.len(), "each member is known once");
    }

    /// How long the members other than `us` have been silent towards this leader, in order of their numbers.
    fn silences(&self, leader: LeaderId, now: Instant) -> Vec<Silence> {
        let latest = self.latest.lock();
        let Some(since) = latest.since.filter(|_| latest.leader == Some(leader)) else { return Vec::new() };
        let of = |(member, added): (&u64, &Instant)| {
            let (at, is_least) = match latest.sent.get(member) {
                Some(sent) => (*sent, false),
                // It may have been silent before this leader began.
                None => (since.max(*added), since > *added),
            };
            Silence { node: NodeId(*member), lasts: now.saturating_since(at), is_least }
        };
        self.members.lock().iter().filter(|(member, _)| **member != leader.node_id).map(of).collect()
    }

    /// When the latest request that `member` has answered was about to be sent.
    #[cfg(test)]
    pub fn acknowledged_by(&self, member: u64) -> Option<Instant> {
        self.latest.lock().sent.get(&member).copied()
    }

    /// When a quorum last acknowledged the leader `us` of `term`; now, if it is a quorum by itself.
    fn quorum(&self, term: u64, us: u64, configs: &[BTreeSet<u64>]) -> Option<Instant> {
        let latest = self.latest.lock();
        let is_ours = latest.leader == Some(LeaderId { term, node_id: us });
        let sent = |member: &u64| latest.sent.get(member).copied().filter(|_| is_ours);
        let of = |config: &BTreeSet<u64>| {
            let mut times: Vec<Instant> =
                config.iter().filter(|member| **member != us).filter_map(sent).collect();
            times.sort_unstable_by(|one, other| other.cmp(one));
            assert!(times.len() <= config.len(), "only members of a quorum count, each once");
            debug_assert!(times.is_sorted_by(|one, other| one >= other), "the latest comes first");
            match (config.len() / 2 + 1) - usize::from(config.contains(&us)) {
                0 => Some(time::now()),
                needed => times.get(needed - 1).copied(),
            }
        };
        // While the voters change, a quorum is one of the old and one of the new.
        configs.iter().map(of).min().flatten()
    }
}

impl Latest {
    /// Forgets an earlier leader.
    fn follow(&mut self, leader: LeaderId) {
        if self.leader < Some(leader) {
            *self = Latest { leader: Some(leader), ..Latest::default() };
        }
        assert!(self.leader >= Some(leader), "acknowledgements are those of the latest leader");
    }
}

/// A leader's contact to its quorum.
#[derive(Clone)]
pub struct QuorumContact {
    raft: Raft,
    acks: Acks,
}

impl QuorumContact {
    /// Of the node whose Raft this is, and whose network notes `acks`.
    pub fn new(raft: Raft, acks: Acks) -> Self {
        QuorumContact { raft, acks }
    }

    /// Changes whenever a member acknowledges a request.
    pub fn heard(&self) -> watch::Receiver<()> {
        self.acks.heard.subscribe()
    }

    /// If this node leads: its term, and up to where `member` has said that it has stored its log.
    pub fn stored_by(&self, member: u64) -> Option<(u64, u64)> {
        let metrics = self.raft.metrics();
        let metrics: &RaftMetrics<TypeConfig> = &metrics.borrow_watched();
        let (term, us) = (metrics.current_term, metrics.id);
        let stored = self.acks.stored(LeaderId { term, node_id: us }, member);
        stored.filter(|_| metrics.state.is_leader()).map(|index| (term, index))
    }

    /// Forgets what `member` has said so far. It was taken out of the members and comes with another data
    /// folder.
    pub fn forget(&self, member: u64) {
        self.acks.forget(member);
    }

    pub fn follow_members(&self, members: &BTreeSet<NodeId>) {
        self.acks.follow_members(members, time::now());
    }

    /// For how long each other member has not answered this leader. Empty on other nodes.
    pub fn silences(&self) -> Vec<Silence> {
        let metrics = self.raft.metrics();
        let metrics: &RaftMetrics<TypeConfig> = &metrics.borrow_watched();
        let leader = LeaderId { term: metrics.current_term, node_id: metrics.id };
        if metrics.state.is_leader() { self.acks.silences(leader, time::now()) } else { Vec::new() }
    }

    /// When this leader was last known to have a quorum, with its term: when the last request that one
    /// acknowledged was about to be sent. Nothing on other nodes.
    pub fn last(&self) -> Option<(u64, Instant)> {
        self.acks.last()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const US: u64 = 1;

    fn leader(term: u64) -> LeaderId {
        LeaderId { term, node_id: US }
    }

    fn acks(noted: &[(u64, Instant)]) -> Acks {
        let acks = Acks::default();
        noted.iter().for_each(|(member, at)| acks.note(leader(3), *member, *at));
        acks
    }

    #[test]
    fn a_quorum_has_acknowledged_what_its_slowest_member_has() {
        let start = time::now();
        let at = |s| start + Duration::from_secs(s);
        let five = [BTreeSet::from([1, 2, 3, 4, 5])];
        assert_eq!(acks(&[(2, at(9))]).quorum(3, US, &five), None);
        assert_eq!(acks(&[(2, at(9)), (4, at(7)), (5, at(8))]).quorum(3, US, &five), Some(at(8)));
        let noted = acks(&[(2, at(9)), (3, at(2)), (2, at(1))]);
        assert_eq!(noted.quorum(3, US, &five), Some(at(2)), "the latest of a member counts");
        assert_eq!(noted.quorum(3, US, &[[2, 3].into()]), Some(at(2)), "a leader without a vote");
        assert!(noted.quorum(3, US, &[[US].into()]) >= Some(start));
    }

    #[test]
    fn while_the_voters_change_both_quorums_count() {
        let start = time::now();
        let at = |s| start + Duration::from_secs(s);
        let noted = acks(&[(2, at(5)), (4, at(3)), (7, at(9))]);
        assert_eq!(noted.quorum(3, US, &[[1, 2, 3].into(), [1, 4, 5].into()]), Some(at(3)));
        assert_eq!(noted.quorum(3, US, &[[1, 2, 3].into(), [1, 5, 6].into()]), None);
    }

    #[test]
    fn what_was_acknowledged_in_another_term_does_not_count() {
        let noted = acks(&[(2, time::now())]);
        let three = [BTreeSet::from([1, 2, 3])];
        assert!(noted.quorum(3, US, &three).is_some());
        assert_eq!(noted.quorum(4, US, &three), None);
        noted.note(leader(4), 3, time::now());
        assert!(noted.quorum(3, US, &three).is_none() && noted.quorum(4, US, &three).is_some());
        noted.note(leader(3), 2, time::now() + Duration::from_secs(9));
        assert!(noted.quorum(3, US, &three).is_none(), "a late answer");
    }

    #[test]
    fn a_member_is_silent_since_its_last_answer_or_since_it_is_one_or_since_this_leader_began() {
        let noted = acks(&[]);
        let before = time::now();
        let nodes = |all: &[u64]| all.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        noted.follow_members(&nodes(&[US, 2, 3]), before);
        noted.note(leader(3), 2, before);
        let at = |s| time::now() + Duration::from_secs(s);
        noted.follow_members(&nodes(&[US, 2, 3, 4]), at(60));
        let found = noted.silences(leader(3), at(90));
        let told: Vec<_> = found.iter().map(|it| (it.node.0, it.lasts.as_secs(), it.is_least)).collect();
        assert_eq!(told, [(2, 90, false), (3, 90, true), (4, 30, false)]);
        assert!(noted.silences(leader(4), at(90)).is_empty(), "another leader has heard nobody");
        noted.follow_members(&nodes(&[US, 2]), at(90));
        assert_eq!(noted.silences(leader(3), at(90)).len(), 1, "who is no member is not silent");
    }

    #[test]
    fn whoever_waits_for_an_acknowledgement_is_woken_by_it_and_not_by_one_of_an_earlier_term() {
        let noted = acks(&[]);
        let heard = noted.heard.subscribe();
        noted.note(leader(3), 2, time::now());
        assert!(heard.has_changed());
        let heard = noted.heard.subscribe();
        noted.note(leader(2), 2, time::now());
        assert!(!heard.has_changed());
    }
}
