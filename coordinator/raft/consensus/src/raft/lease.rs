//! The lease that a voter grants its leader: while the lease lasts, the voter refuses other candidates.
//!
//! `rpc.rs` reports each heartbeat and each vote, the peer server each ended connection, and `elections.rs`
//! reads from the lease when this node stands for election. openraft's own lease has one length for
//! everything and stays unused (`RaftDispatch` marks each vote permitted by this lease as permitted). No read
//! and no write depends on a lease: two leaders of two terms are safe in Raft, and a lease only keeps a node
//! with a bad connection to its leader from disturbing the nodes with a good one (Ongaro's thesis, section
//! 4.2.3).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::decides;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};

use super::acks::Acks;
use crate::config::RaftConfig;
use crate::raft_types::LeaderId;

/// Flushes from a candidacy to the leader's first heartbeat: the candidate's vote, the voter's vote, the
/// leader's confirmed vote, and one in progress.
const FLUSHES_OF_AN_ELECTION: u32 = 4;

/// Wait of the mutant for votes and for the answer to a vote request.
pub(super) const FIXED: Duration = Duration::from_millis(20);

/// Lease of this node; clones share their state.
#[derive(Clone)]
pub struct LeaderLease {
    acks: Acks,
    least: Duration,
    reconnect: Duration,
    probe: Duration,
    silence: Duration,
    begun: Instant,
    state: Arc<Mutex<LeaseState>>,
    /// Changes when a connection ends or an own vote request leaves, not with heartbeats.
    changed: Arc<watch::Sender<()>>,
}

#[derive(Clone, Copy, Default)]
struct LeaseState {
    /// Leader of the latest heartbeat.
    leader: Option<LeaderId>,
    heard: Option<Instant>,
    /// End of the connection on which the leader sent its heartbeats, if no later heartbeat came.
    disconnected: Option<Instant>,
    /// Votes in progress in Raft, waiting for the disk.
    voting: usize,
    /// Time of the latest vote for another candidate.
    voted: Option<Instant>,
    /// Start of this node's latest candidacy, also of one requested by the leader.
    stood: Option<Instant>,
    /// Departure of that candidacy's vote requests, behind the flush of the own vote.
    sent: Option<Instant>,
    /// A voter has a newer log than this candidate, or has voted in a later term.
    outdone: bool,
    /// Term of that vote or candidacy, whichever is later. A leader of this term decides the election.
    term: u64,
    flush: Duration,
    /// Time of the last answers from a majority of the voters to a pre-vote.
    answered: Option<Instant>,
}

impl LeaseState {
    /// Records the time that a vote took to its flush. A vote that takes longer than an election can wait for
    /// mostly waited for room on a full disk, and says nothing of the next one.
    fn flushed(&mut self, took: Duration) {
        if took <= ROUND_MAX / FLUSHES_OF_AN_ELECTION {
            self.flush = took;
        }
    }
}

impl LeaderLease {
    /// Creates the lease without a leader: a restarted voter knows none.
    pub fn new(raft: &RaftConfig, acks: Acks) -> Self {
        let heartbeat = Duration::from_millis(raft.heartbeat_ms);
        let least = Duration::from_millis(raft.election_timeout_min_ms);
        assert!(raft.election_timeout_min_ms < raft.election_timeout_max_ms, "the settings were checked");
        LeaderLease {
            acks,
            least,
            probe: heartbeat * 3,
            // The lease of a voter that still hears this leader, plus the time for an election.
            silence: least + Duration::from_millis(raft.election_timeout_max_ms),
            // A live leader dials again with its next heartbeat.
            reconnect: heartbeat + heartbeat / 4,
            begun: time::now(),
            state: Arc::default(),
            changed: Arc::new(watch::channel(()).0),
        }
    }

    /// Returns a receiver for events relevant to `elections.rs`; heartbeats are not among them.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Records a heartbeat of `leader` on arrival: Raft may handle the heartbeat later, behind a flush.
    pub fn heard(&self, leader: LeaderId) {
        let mut state = self.state.lock();
        if decides!("append-is-of-newest-leader", state.leader <= Some(leader)) {
            (state.leader, state.heard, state.disconnected) = (Some(leader), Some(time::now()), None);
            if leader.term >= state.term {
                (state.voted, state.stood, state.sent) = (None, None, None);
            }
        }
    }

    /// Records the end of a connection on which `node` sent heartbeats. Returns the leader's term if `node`
    /// is the leader.
    pub fn disconnected(&self, node: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let leader = state.leader.filter(|leader| leader.node_id == node)?;
        state.disconnected = Some(time::now());
        drop(state);
        self.changed.send(());
        Some(leader.term)
    }

    /// Records that a vote in `term` was requested from Raft.
    pub(super) fn voting(&self, term: u64) -> Voting {
        self.state.lock().voting += 1;
        Voting { lease: self.clone(), term, begun: time::now() }
    }

    /// Records that a majority of the voters answered a pre-vote.
    pub(super) fn majority_answered(&self) {
        self.state.lock().answered = Some(time::now());
    }

    /// Returns whether a majority of the voters answered this node within `time`, although none leads.
    pub fn hears_majority(&self, time: Duration) -> bool {
        self.state.lock().answered.is_some_and(|at| at.elapsed() <= time)
    }

    /// Records the start of this node's candidacy in `term`.
    pub fn stands(&self, term: u64) {
        let mut state = self.state.lock();
        (state.stood, state.sent, state.term) = (Some(time::now()), None, term.max(state.term));
        state.outdone = false;
    }

    /// Records that a voter with a newer log, or a vote in a later term, refused this node's candidacy in
    /// `term`. So that candidacy delays no other election.
    pub(super) fn outdone(&self, term: u64) {
        let mut state = self.state.lock();
        state.outdone |= term >= state.term;
    }

    /// Records the departure of a vote request: this node's own vote is on disk.
    pub fn vote_requested(&self) {
        let (mut state, now) = (self.state.lock(), time::now());
        assert!(state.sent.is_none() || state.stood.is_some(), "requests leave for a candidacy");
        if let Some(stood) = state.stood.filter(|_| state.sent.is_none()) {
            state.sent = Some(now);
            state.flushed(now.saturating_since(stood));
            drop(state);
            self.changed.send(());
        }
    }

    /// Returns whether this node, leading as `leader`, may send a heartbeat. After a lease without a quorum
    /// the leader is silent, since a voter with a valid lease would elect no other leader (openraft 2080).
    /// Between the silences the leader sends a few heartbeats, which a recovered quorum acknowledges.
    pub(super) fn may_send_heartbeat(&self, leader: LeaderId) -> bool {
        let alone = self.acks.without_quorum(leader);
        let Some(beyond) = alone.checked_sub(self.least) else { return true };
        let cycle = (self.silence + self.probe).as_micros();
        assert!(self.silence > self.least, "a bridge's lease ends in the silence");
        mutant::is(Mutant::HeartbeatsWithoutQuorum)
            || decides!("heartbeat-may-be-sent", beyond.as_micros() % cycle >= self.silence.as_micros())
    }

    /// Returns the end of the leader's lease; `None` without a leader.
    fn end(&self, state: &LeaseState) -> Option<Instant> {
        let by_silence = state.heard.map(|heard| heard + self.least);
        let by_connection = state.disconnected.map(|at| at + self.reconnect);
        match (by_silence, by_connection) {
            (Some(silence), Some(connection)) => Some(silence.min(connection)),
            (end, _) => end,
        }
    }

    /// Returns whether a lease lasts, of the leader or of this node's own leadership: then a candidate gets a
    /// vote only on the leader's request.
    pub fn lasts(&self) -> bool {
        let (state, now) = (*self.state.lock(), time::now());
        let confirmed = self.acks.last().is_some_and(|(_, at)| now < at + self.least);
        decides!("lease-lasts", confirmed || self.end(&state).is_some_and(|end| now < end))
    }

    /// Returns whether a known election is in progress: then this node promises no vote to another candidate.
    pub fn awaits_votes(&self) -> bool {
        let state = *self.state.lock();
        let patience = self.patience(self.least, &state);
        let stood = state.stood.max(state.sent).filter(|_| !decides!("candidacy-is-outdone", state.outdone));
        let begun = state.voted.max(stood);
        state.voting > 0 || begun.is_some_and(|begun| time::now() < begun + patience)
    }

    /// Returns when this node stands for election: after `timeout` of silence, or `jitter` after the lease of
    /// a leader with an ended connection. Another candidate's election gets its time first.
    pub(super) fn due(&self, timeout: Duration, jitter: Duration) -> Instant {
        let state = *self.state.lock();
        let silence = match (state.heard, state.disconnected) {
            (Some(heard), None) => heard + timeout,
            _ => self.end(&state).unwrap_or(self.begun) + jitter,
        };
        let election = state.voted.map(|voted| voted + self.patience(timeout, &state));
        election.map_or(silence, |election| election.max(silence))
    }

    /// Returns the departure of the latest candidacy's vote requests, and the time to wait in its round (from
    /// 0) of a leaderless period: each round lasts twice as long.
    pub(super) fn round(&self, round: u32) -> Option<(Instant, Duration)> {
        let state = *self.state.lock();
        let doubled = self.least.saturating_mul(1 << round.min(10));
        let lasts = self.patience(doubled, &state).min(ROUND_MAX.max(self.least));
        debug_assert!(!lasts.is_zero(), "votes are waited for");
        state.sent.map(|sent| (sent, lasts))
    }

    /// Returns `least`, or longer on a disk with slow flushes.
    fn patience(&self, least: Duration, state: &LeaseState) -> Duration {
        if mutant::is(Mutant::ElectionsDoNotWait) {
            return FIXED;
        }
        least.max(state.flush.saturating_mul(FLUSHES_OF_AN_ELECTION).min(ROUND_MAX))
    }

    /// Returns the term and the time of the last heartbeat.
    pub(super) fn latest(&self) -> (Option<u64>, Option<Instant>) {
        let state = *self.state.lock();
        (state.leader.map(|leader| leader.term), state.heard)
    }
}

/// Vote in progress in Raft. Without a call of `granted` the vote has no effect on the lease.
pub(super) struct Voting {
    lease: LeaderLease,
    term: u64,
    begun: Instant,
}

impl Voting {
    /// Records the vote, which is on disk now.
    pub(super) fn granted(&self) {
        let mut state = self.lease.state.lock();
        state.voted = Some(time::now());
        state.flushed(self.begun.elapsed());
        state.term = self.term.max(state.term);
    }
}

impl Drop for Voting {
    fn drop(&mut self) {
        let mut state = self.lease.state.lock();
        assert!(state.voting > 0, "each vote ends once");
        state.voting -= 1;
    }
}

/// Longest wait for votes, unless the timers of `cluster.toml` are longer.
pub(super) const ROUND_MAX: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(1_500);
    const LEADER: LeaderId = LeaderId { term: 4, node_id: 2 };

    fn lease() -> LeaderLease {
        LeaderLease::new(&RaftConfig::default(), Acks::default())
    }

    /// Returns the time from now until this node stands for election.
    fn waits(lease: &LeaderLease) -> Duration {
        lease.due(TIMEOUT, Duration::ZERO).saturating_since(time::now())
    }

    #[test]
    fn a_broken_connection_ends_the_lease_until_a_heartbeat() {
        let lease = lease();
        assert!(!lease.lasts() && waits(&lease).is_zero(), "a restarted voter knows no leader");
        assert_eq!(
            lease.due(TIMEOUT, TIMEOUT),
            lease.due(TIMEOUT, TIMEOUT),
            "it does not wait again and again"
        );
        lease.heard(LEADER);
        assert!(lease.lasts() && waits(&lease) > lease.least);
        assert_eq!(lease.disconnected(3), None, "another node");
        assert!(waits(&lease) > lease.least);
        assert_eq!(lease.disconnected(2), Some(4));
        assert!(lease.lasts() && waits(&lease) <= lease.reconnect, "it may dial again");
        lease.heard(LeaderId { term: 3, node_id: 1 });
        assert!(waits(&lease) <= lease.reconnect, "an earlier leader");
        lease.heard(LEADER);
        assert!(lease.lasts() && waits(&lease) > lease.least);
    }

    #[test]
    fn an_election_has_its_time_until_its_leader_is_heard() {
        let lease = lease();
        lease.heard(LEADER);
        lease.disconnected(2);
        let voting = lease.voting(5);
        assert!(lease.awaits_votes(), "the vote is being written");
        drop(voting);
        assert!(!lease.awaits_votes(), "it was not given");
        lease.voting(5).granted();
        assert!(lease.awaits_votes() && waits(&lease) > lease.least);
        lease.heard(LEADER);
        assert!(lease.awaits_votes(), "the old leader is no answer");
        lease.heard(LeaderId { term: 5, node_id: 3 });
        assert!(!lease.awaits_votes() && lease.lasts());
        lease.disconnected(3);
        assert!(waits(&lease) <= lease.reconnect, "no vote delays the next election");
        let mut late = lease.voting(6);
        late.begun = time::now() - 2 * ROUND_MAX;
        late.granted();
        drop(late);
        assert!(waits(&lease) <= TIMEOUT, "the vote waited for room, and the next one does not");
    }

    #[test]
    fn an_outdone_candidacy_delays_no_other_election() {
        let lease = lease();
        lease.stands(7);
        lease.vote_requested();
        lease.outdone(6);
        assert!(lease.awaits_votes(), "an earlier candidacy was outdone");
        lease.outdone(7);
        assert!(!lease.awaits_votes());
        lease.stands(8);
        assert!(lease.awaits_votes(), "the next one is not outdone yet");
    }

    #[test]
    fn rounds_double_and_respect_slow_flushes() {
        let lease = lease();
        assert_eq!(lease.round(0), None, "no vote request has left");
        lease.stands(7);
        lease.vote_requested();
        let lasts = |round| lease.round(round).expect("has left").1;
        assert_eq!([lasts(0), lasts(1), lasts(2)], [lease.least, 2 * lease.least, 4 * lease.least]);
        assert_eq!([lasts(3), lasts(40)], [ROUND_MAX; 2]);
        lease.state.lock().flush = Duration::from_millis(700);
        assert_eq!([lasts(0), lasts(2)], [Duration::from_millis(2_800), 4 * lease.least]);
        // A vote waited for room on a full disk.
        lease.voting(7).granted();
        lease.state.lock().flush = Duration::from_secs(60);
        assert_eq!(lasts(0), ROUND_MAX);
        assert!(waits(&lease) <= ROUND_MAX, "the next candidate is heard as soon");
    }

    #[test]
    fn a_leader_without_a_quorum_is_silent_after_a_lease() {
        let raft = RaftConfig { election_timeout_min_ms: 0, ..RaftConfig::default() };
        let lease = LeaderLease::new(&raft, Acks::default());
        assert!(!lease.may_send_heartbeat(LEADER), "without a quorum for no time at all");
        let lease = self::lease();
        assert!(lease.may_send_heartbeat(LEADER), "it has only begun");
    }
}
