//! The lease that a voter gives its leader: while the lease lasts, the voter refuses other candidates.
//!
//! `rpc.rs` reports each heartbeat and each vote, the peer server each connection that ends, and
//! `elections.rs` reads from the lease when this node stands for election. openraft has a lease of its own
//! with one length for everything; it is never asked (`RaftDispatch` marks each vote that this lease permits
//! as permitted). No read and no write depends on a lease: two leaders of two terms are safe in Raft, and a
//! lease only keeps a node that hears its leader badly from disturbing those that hear it well (Ongaro's
//! thesis, section 4.2.3).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};

use super::acks::Acks;
use crate::config::RaftConfig;
use crate::raft_types::LeaderId;

/// Flushes that a leadership takes until its first heartbeat: the candidate's vote, the voter's vote, the
/// leader's confirmed vote, and one that was under way.
const FLUSHES_OF_AN_ELECTION: u32 = 4;

/// One per node; clones share its state.
#[derive(Clone)]
pub struct LeaderLease {
    acks: Acks,
    least: Duration,
    reconnect: Duration,
    probe: Duration,
    silence: Duration,
    state: Arc<Mutex<State>>,
    /// Changes when a connection ends or an own vote request leaves, and not with heartbeats.
    changed: Arc<watch::Sender<()>>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Leader of the latest heartbeat.
    leader: Option<LeaderId>,
    heard: Option<Instant>,
    /// End of the connection on which the leader sent its heartbeats, if no heartbeat has come since.
    disconnected: Option<Instant>,
    /// Votes that Raft is giving: they wait for the disk.
    voting: usize,
    /// Time of the latest vote for another candidate.
    voted: Option<Instant>,
    /// Start of this node's latest candidacy, also of one that the leader asked for.
    stood: Option<Instant>,
    /// Departure of that candidacy's vote requests, behind the flush of the own vote.
    sent: Option<Instant>,
    /// Duration of the latest flush of a vote.
    flush: Duration,
    /// Time at which a majority of the voters last said how they would vote.
    answered: Option<Instant>,
}

impl LeaderLease {
    /// Starts without a leader: a restarted voter knows of none.
    pub fn new(raft: &RaftConfig, acks: Acks) -> Self {
        let heartbeat = Duration::from_millis(raft.heartbeat_ms);
        let least = Duration::from_millis(raft.election_timeout_min_ms);
        LeaderLease {
            acks,
            least,
            probe: heartbeat * 3,
            // The lease of a voter that still hears this leader, and the time for an election.
            silence: least + Duration::from_millis(raft.election_timeout_max_ms),
            // A leader that lives dials again with its next heartbeat.
            reconnect: heartbeat + heartbeat / 2,
            state: Arc::default(),
            changed: Arc::new(watch::channel(()).0),
        }
    }

    /// Wakes `elections.rs`; heartbeats do not.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Records a heartbeat of `leader`, as soon as it has arrived: Raft may take it later, behind a flush.
    pub fn heard(&self, leader: LeaderId) {
        let mut state = self.state.lock();
        if state.leader <= Some(leader) {
            (state.leader, state.heard, state.disconnected) = (Some(leader), Some(time::now()), None);
        }
    }

    /// Records the end of a connection on which `node` sent heartbeats. Returns the leader's term if `node` is
    /// the leader.
    pub fn disconnected(&self, node: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let leader = state.leader.filter(|leader| leader.node_id == node)?;
        state.disconnected = Some(time::now());
        drop(state);
        self.changed.send(());
        Some(leader.term)
    }

    /// Records that Raft is asked for a vote.
    pub(super) fn voting(&self) -> Voting {
        self.state.lock().voting += 1;
        Voting { lease: self.clone(), begun: time::now() }
    }

    /// Records that a majority of the voters has said how it would vote.
    pub(super) fn majority_answered(&self) {
        self.state.lock().answered = Some(time::now());
    }

    /// Whether a majority of the voters has answered this node within `time`, although none leads.
    pub fn hears_majority(&self, time: Duration) -> bool {
        self.state.lock().answered.is_some_and(|at| at.elapsed() <= time)
    }

    /// Records the start of this node's candidacy.
    pub fn stands(&self) {
        let mut state = self.state.lock();
        (state.stood, state.sent) = (Some(time::now()), None);
    }

    /// Records the departure of a vote request: this node's own vote is on disk.
    pub fn vote_requested(&self) {
        let (mut state, now) = (self.state.lock(), time::now());
        if let Some(stood) = state.stood.filter(|_| state.sent.is_none()) {
            (state.sent, state.flush) = (Some(now), now.saturating_since(stood));
            drop(state);
            self.changed.send(());
        }
    }

    /// Whether this node, which leads as `leader`, may send a heartbeat. Without a quorum for a lease it is
    /// silent, since a voter that still hears it would elect no leader (openraft 2080); in between it sends a
    /// few heartbeats, which a quorum that has come back acknowledges.
    pub(super) fn may_send_heartbeat(&self, leader: LeaderId) -> bool {
        let alone = self.acks.without_quorum(leader);
        let Some(beyond) = alone.checked_sub(self.least) else { return true };
        let cycle = (self.silence + self.probe).as_micros();
        mutant::is(Mutant::HeartbeatsWithoutQuorum) || beyond.as_micros() % cycle >= self.silence.as_micros()
    }

    /// Returns when the leader's lease ends; `None` without a leader.
    fn end(&self, state: &State) -> Option<Instant> {
        let by_silence = state.heard.map(|heard| heard + self.least);
        let by_connection = state.disconnected.map(|at| at + self.reconnect);
        match (by_silence, by_connection) {
            (Some(silence), Some(connection)) => Some(silence.min(connection)),
            (end, _) => end,
        }
    }

    /// Whether a lease lasts, of the leader or of this node's own leadership: no candidate gets a vote that the
    /// leader has not asked for.
    pub fn lasts(&self) -> bool {
        let (state, now) = (*self.state.lock(), time::now());
        let confirmed = self.acks.last().is_some_and(|(_, at)| now < at + self.least);
        confirmed || self.end(&state).is_some_and(|end| now < end)
    }

    /// Whether an election of which this node knows is still under way: no other candidate is told that it
    /// would win.
    pub fn awaits_votes(&self) -> bool {
        let state = *self.state.lock();
        let patience = self.patience(self.least, &state);
        let begun = state.voted.max(state.stood).max(state.sent);
        state.voting > 0 || begun.is_some_and(|begun| time::now() < begun + patience)
    }

    /// Returns when this node stands for election: after `timeout` of silence, or `jitter` after the lease of a
    /// leader whose connection has ended. An election of another candidate has its time.
    pub(super) fn due(&self, timeout: Duration, jitter: Duration) -> Instant {
        let state = *self.state.lock();
        let silence = match (state.heard, state.disconnected) {
            (Some(heard), None) => heard + timeout,
            _ => self.end(&state).unwrap_or_else(time::now) + jitter,
        };
        let election = state.voted.map(|voted| voted + self.patience(timeout, &state));
        election.map_or(silence, |election| election.max(silence))
    }

    /// Returns when the vote requests of the latest candidacy left, and how long they are waited for in its
    /// round (from 0) of a leaderless time: each round lasts twice as long.
    pub(super) fn round(&self, round: u32) -> Option<(Instant, Duration)> {
        let state = *self.state.lock();
        let doubled = self.least.saturating_mul(1 << round.min(10));
        let lasts = self.patience(doubled, &state).min(ROUND_MAX.max(self.least));
        state.sent.map(|sent| (sent, lasts))
    }

    /// Returns `least`, or longer on a disk on which an election takes longer.
    fn patience(&self, least: Duration, state: &State) -> Duration {
        least.max(state.flush.saturating_mul(FLUSHES_OF_AN_ELECTION))
    }

    /// Returns the term of the leader that was heard last, and when.
    pub(super) fn latest(&self) -> (Option<u64>, Option<Instant>) {
        let state = *self.state.lock();
        (state.leader.map(|leader| leader.term), state.heard)
    }
}

/// A vote that Raft is asked for. Without a call of `granted` it counts for nothing.
pub(super) struct Voting {
    lease: LeaderLease,
    begun: Instant,
}

impl Voting {
    /// Records the vote, which is on disk now.
    pub(super) fn granted(&self) {
        let mut state = self.lease.state.lock();
        (state.voted, state.flush) = (Some(time::now()), self.begun.elapsed());
    }
}

impl Drop for Voting {
    fn drop(&mut self) {
        let mut state = self.lease.state.lock();
        assert!(state.voting > 0, "each vote ends once");
        state.voting -= 1;
    }
}

/// Votes are not waited for any longer than this, unless the timers of `cluster.toml` are longer.
pub(super) const ROUND_MAX: Duration = Duration::from_secs(8);
