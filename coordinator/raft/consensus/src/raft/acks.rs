//! Time of each member's last acknowledgement to this leader, and of the last one by a quorum.
//!
//! An answer acknowledges its own request, and all earlier ones. openraft also counts an answer for later
//! requests that reach no further into the log (these only carry the commit index), since openraft expects
//! one request at a time. With requests sent ahead of answers, an old answer read late would count as a fresh
//! one, and a deposed leader would confirm heartbeats. So the streams, which match answers with requests,
//! keep the times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openraft::RaftMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft_rt::watch::WatchReceiver as _;
use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Silence;
use rowlock_proto::NodeId;
use smallvec::SmallVec;

use crate::raft_types::{AppendResponse, ClientPresence, LeaderId, RaftResponse, TypeConfig};

/// Acknowledgements on this node; clones share their state.
#[derive(Clone)]
pub struct Acks {
    latest: Arc<Mutex<Latest>>,
    /// Changes with every answer.
    pub(super) heard: Arc<watch::Sender<()>>,
    /// Start of each member's membership, as seen by this node.
    members: Arc<Mutex<BTreeMap<u64, Instant>>>,
    /// Role of this node and the voters, available once Raft runs.
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
    /// The leader of the records below, which is this node.
    leader: Option<LeaderId>,
    /// Time of the first answer to that leader.
    since: Option<Instant>,
    /// Time before that leader's first heartbeat.
    began: Option<Instant>,
    /// Send time of the latest answered request, by member.
    sent: BTreeMap<u64, Instant>,
    /// Index up to which a member has stored this leader's log, by member.
    stored: BTreeMap<u64, u64>,
}

impl Acks {
    /// Starts reading this node's role from the metrics of its Raft.
    pub fn follow_raft(&self, metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>) {
        assert!(self.metrics.set(metrics).is_ok(), "a node has one Raft");
    }

    /// Returns this node's term and the send time of the latest request that a quorum acknowledged, while
    /// this node leads.
    pub fn last(&self) -> Option<(u64, Instant)> {
        let metrics: &RaftMetrics<TypeConfig> = &self.metrics.get()?.borrow_watched();
        if decides!("acks-have-no-leader", !metrics.state.is_leader()) {
            return None;
        }
        let configs = metrics.membership_config.membership().get_joint_config();
        let at = self.quorum(metrics.current_term, metrics.id, configs)?;
        Some((metrics.current_term, at))
    }

    /// Returns the time since a quorum last acknowledged `leader`, which is this node and is about to send a
    /// heartbeat.
    pub fn without_quorum(&self, leader: LeaderId) -> Duration {
        let now = time::now();
        let began = {
            let mut latest = self.latest.lock();
            latest.follow(leader);
            if decides!("acks-are-of-other-leader", latest.leader != Some(leader)) {
                return Duration::ZERO;
            }
            *latest.began.get_or_insert(now)
        };
        let last = self.last().filter(|(term, _)| *term == leader.term).map(|(_, at)| at);
        now.saturating_since(last.map_or(began, |last| last.max(began)))
    }

    /// Records that `member` accepted a request of this leader, sent at `sent` or later.
    pub fn record(&self, leader: LeaderId, member: u64, sent: Instant) {
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

    /// Records that `member` has stored this leader's log up to `index`.
    pub fn record_stored(&self, leader: LeaderId, member: u64, index: u64) {
        let mut latest = self.latest.lock();
        latest.follow(leader);
        if latest.leader == Some(leader) {
            let stored = latest.stored.entry(member).or_insert(index);
            *stored = index.max(*stored);
            assert!(*stored >= index, "the furthest acknowledgement counts");
        }
    }

    /// Returns the index up to which `member` has acknowledged the log of this leader.
    pub fn stored(&self, leader: LeaderId, member: u64) -> Option<u64> {
        let latest = self.latest.lock();
        latest.stored.get(&member).copied().filter(|_| latest.leader == Some(leader))
    }

    /// Returns a member's answer to an append request, and whether the member has clients. Forgets how far a
    /// member has stored the log that says that it has forgotten entries: the member gets the entries again,
    /// and its vote counts only after its admission.
    ///
    /// # Errors
    /// The response answers another request.
    pub fn appended_by(
        &self,
        member: NodeId,
        response: RaftResponse,
    ) -> Result<(AppendResponse, ClientPresence), RaftResponse> {
        if let RaftResponse::ForgetfulAppend(_) = response {
            rare::taken(Rare::ForgottenSentAgain);
            self.latest.lock().stored.remove(&member.0);
        }
        response.into_append()
    }

    /// Forgets the acknowledgements of `member`, which returns with another data folder.
    pub(super) fn forget(&self, member: u64) {
        let mut latest = self.latest.lock();
        latest.stored.remove(&member);
        latest.sent.remove(&member);
    }

    /// Sets the members. The silence of a member that is added later starts at `now`.
    pub(super) fn follow_members(&self, members: &BTreeSet<NodeId>, now: Instant) {
        let mut known = self.members.lock();
        known.retain(|member, _| members.contains(&NodeId(*member)));
        members.iter().for_each(|member| {
            known.entry(member.0).or_insert(now);
        });
        assert_eq!(known.len(), members.len(), "each member is known once");
    }

    /// Returns the silence of each member other than this leader, in order of their numbers.
    pub(super) fn silences(&self, leader: LeaderId, now: Instant) -> Vec<Silence> {
        let latest = self.latest.lock();
        let Some(since) = latest.since.filter(|_| latest.leader == Some(leader)) else { return Vec::new() };
        let of = |(member, added): (&u64, &Instant)| {
            let (at, is_least) = match latest.sent.get(member) {
                Some(sent) => (*sent, false),
                // The member may have been silent before this leader began.
                None => (since.max(*added), since > *added),
            };
            Silence { node: NodeId(*member), lasts: now.saturating_since(at), is_least }
        };
        self.members.lock().iter().filter(|(member, _)| **member != leader.node_id).map(of).collect()
    }

    /// Returns the send time of the latest request that `member` has answered.
    #[cfg(test)]
    pub fn acknowledged_by(&self, member: u64) -> Option<Instant> {
        self.latest.lock().sent.get(&member).copied()
    }

    /// Returns when a quorum last acknowledged the leader `us` of `term`; now, if `us` is a quorum alone.
    fn quorum(&self, term: u64, us: u64, configs: &[BTreeSet<u64>]) -> Option<Instant> {
        let latest = self.latest.lock();
        let is_ours = latest.leader == Some(LeaderId { term, node_id: us });
        let sent = |member: &u64| latest.sent.get(member).copied().filter(|_| is_ours);
        let of = |config: &BTreeSet<u64>| {
            let mut times: SmallVec<[Instant; 8]> =
                config.iter().filter(|member| **member != us).filter_map(sent).collect();
            times.sort_unstable_by(|one, other| other.cmp(one));
            assert!(times.len() <= config.len(), "only members of a quorum count, each once");
            debug_assert!(times.is_sorted_by(|one, other| one >= other), "the latest comes first");
            match (config.len() / 2 + 1) - usize::from(config.contains(&us)) {
                0 => Some(time::now()),
                needed => times.get(needed - 1).copied(),
            }
        };
        // While the voters change, both the old and the new voters need a quorum.
        configs.iter().map(of).min().flatten()
    }
}

impl Latest {
    /// Forgets the acknowledgements to an earlier leader.
    fn follow(&mut self, leader: LeaderId) {
        if self.leader < Some(leader) {
            *self = Latest { leader: Some(leader), ..Latest::default() };
        }
        assert!(self.leader >= Some(leader), "acknowledgements are those of the latest leader");
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

    fn acks(acknowledged: &[(u64, Instant)]) -> Acks {
        let acks = Acks::default();
        acknowledged.iter().for_each(|(member, at)| acks.record(leader(3), *member, *at));
        acks
    }

    #[test]
    fn a_quorum_acknowledges_with_its_slowest_member() {
        let start = time::now();
        let at = |s| start + Duration::from_secs(s);
        let five = [BTreeSet::from([1, 2, 3, 4, 5])];
        assert_eq!(acks(&[(2, at(9))]).quorum(3, US, &five), None);
        assert_eq!(acks(&[(2, at(9)), (4, at(7)), (5, at(8))]).quorum(3, US, &five), Some(at(8)));
        let acks = acks(&[(2, at(9)), (3, at(2)), (2, at(1))]);
        assert_eq!(acks.quorum(3, US, &five), Some(at(2)), "the latest of a member counts");
        assert_eq!(acks.quorum(3, US, &[[2, 3].into()]), Some(at(2)), "a leader without a vote");
        assert!(acks.quorum(3, US, &[[US].into()]) >= Some(start));
    }

    #[test]
    fn while_the_voters_change_both_quorums_count() {
        let start = time::now();
        let at = |s| start + Duration::from_secs(s);
        let acks = acks(&[(2, at(5)), (4, at(3)), (7, at(9))]);
        assert_eq!(acks.quorum(3, US, &[[1, 2, 3].into(), [1, 4, 5].into()]), Some(at(3)));
        assert_eq!(acks.quorum(3, US, &[[1, 2, 3].into(), [1, 5, 6].into()]), None);
    }

    #[test]
    fn acknowledgements_of_another_term_do_not_count() {
        let acks = acks(&[(2, time::now())]);
        let three = [BTreeSet::from([1, 2, 3])];
        assert!(acks.quorum(3, US, &three).is_some());
        assert_eq!(acks.quorum(4, US, &three), None);
        acks.record(leader(4), 3, time::now());
        assert!(acks.quorum(3, US, &three).is_none() && acks.quorum(4, US, &three).is_some());
        acks.record(leader(3), 2, time::now() + Duration::from_secs(9));
        assert!(acks.quorum(3, US, &three).is_none(), "a late answer");
    }

    #[test]
    fn a_leader_without_answers_counts_the_time_from_its_first_question() {
        let acks = acks(&[]);
        assert!((0..1_000_000).any(|_| !acks.without_quorum(leader(3)).is_zero()), "the time passes");
        assert_eq!(acks.without_quorum(leader(4)), Duration::ZERO, "a later term begins");
        assert_eq!(acks.without_quorum(leader(3)), Duration::ZERO, "an earlier term has ended");
    }

    #[test]
    fn silence_starts_at_the_last_answer_or_at_membership() {
        let acks = acks(&[]);
        let before = time::now();
        let nodes = |all: &[u64]| all.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        acks.follow_members(&nodes(&[US, 2, 3]), before);
        acks.record(leader(3), 2, before);
        let at = |s| time::now() + Duration::from_secs(s);
        acks.follow_members(&nodes(&[US, 2, 3, 4]), at(60));
        let found = acks.silences(leader(3), at(90));
        let silent: Vec<_> = found.iter().map(|it| (it.node.0, it.lasts.as_secs(), it.is_least)).collect();
        assert_eq!(silent, [(2, 90, false), (3, 90, true), (4, 30, false)]);
        assert!(acks.silences(leader(4), at(90)).is_empty(), "another leader has no answers");
        acks.follow_members(&nodes(&[US, 2]), at(90));
        assert_eq!(acks.silences(leader(3), at(90)).len(), 1, "a removed member is not silent");
    }

    #[test]
    fn only_acknowledgements_of_the_current_term_wake_waiters() {
        let acks = acks(&[]);
        let heard = acks.heard.subscribe();
        acks.record(leader(3), 2, time::now());
        assert!(heard.has_changed());
        let heard = acks.heard.subscribe();
        acks.record(leader(2), 2, time::now());
        assert!(!heard.has_changed());
    }
}
