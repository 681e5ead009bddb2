//! Publishes this node's status: role, indices, and whether the node serves clients.
//!
//! A node serves while it is in contact with a quorum and has applied all entries committed when the contact
//! began. When a node stops serving, it closes all client connections, and the clients connect to other
//! nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rowlock_consensus::peer::{Lane, PeerPool, Request, Response};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{Admission, LeaderLease, QuorumContact, Raft, facts};
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_types::memory::Part;
use rowlock_types::metrics::Metrics;
use rowlock_types::node_hook::Position;
use rowlock_types::status::{NotServing, Status};
use rowlock_wal::Log;

use crate::node::delivery::outbox::CloseReason;
use crate::node::delivery::registry::Registry;
use crate::node::proposer::pending::PendingWrites;
use crate::node::replica::Replica;
use rowlock_sessions::last_contact::LastContact;

/// Publishing interval without events.
const EVERY: Duration = Duration::from_millis(50);
/// A majority with vote responses within this time counts as reachable.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Deadline for the leader's read index.
const READ_INDEX_DEADLINE: Duration = Duration::from_secs(1);

/// A node whose log has waited for disk space this long stops serving, if the other nodes make progress.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// A disk with a write pending this long counts as unresponsive. Flushes of several seconds are slow, and the
/// node keeps serving.
pub const DISK_HANGS_AFTER: Duration = Duration::from_secs(5);

/// Interval of log lines during an outage.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Log schedule of an outage: the cause is logged at once elsewhere, the duration here every ten seconds.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    logged: u32,
}

impl Outage {
    /// Records whether the node serves. Returns the outage's duration when a log line is due.
    fn update(&mut self, serving: bool, now: Instant) -> Option<Duration> {
        if serving {
            *self = Outage::default();
            return None;
        }
        let lasts = now.saturating_since(*self.since.get_or_insert(now));
        let due = lasts >= LOG_EVERY * (self.logged + 1);
        if due {
            self.logged = u32::try_from(lasts.as_secs() / LOG_EVERY.as_secs()).unwrap_or(u32::MAX - 1);
        }
        due.then_some(lasts)
    }
}

/// Detector of an unresponsive disk.
#[derive(Debug, Default)]
struct Hang {
    /// Oldest pending write, and the commit index when the write was first seen.
    oldest: Option<(Instant, u64)>,
}

impl Hang {
    /// Records the disk's progress. Returns whether the write pending since `unflushed_since` hangs, and
    /// whether the cluster has made progress since.
    fn update(&mut self, unflushed_since: Option<Instant>, committed: u64, now: Instant) -> (bool, bool) {
        self.oldest = unflushed_since.map(|since| match self.oldest {
            // A new leader may know a lower commit index than its predecessor.
            Some((known, then)) if known == since => (known, then.min(committed)),
            _ => (since, committed),
        });
        let Some((since, then)) = self.oldest else { return (false, false) };
        let hangs = now.saturating_since(since) >= DISK_HANGS_AFTER;
        (hangs, hangs && committed > then)
    }
}

/// Detector of stalled commits: a majority of the disks may hang while this node's disk does not.
#[derive(Debug, Default)]
struct Stall {
    /// Commit index, and the beginning of its standstill.
    since: Option<(u64, Instant)>,
}

impl Stall {
    /// Records the commit index. Returns whether an entry has waited without any commit for
    /// [`DISK_HANGS_AFTER`].
    fn update(&mut self, last: u64, committed: u64, now: Instant) -> bool {
        self.since = (last > committed).then_some(match self.since {
            Some((known, since)) if known == committed => (known, since),
            _ => (committed, now),
        });
        self.since.is_some_and(|(_, since)| now.saturating_since(since) >= DISK_HANGS_AFTER)
    }
}

/// Remaining grace after a restore. The leader measures the grace from the beginning of its term, this node
/// from its first sight of the term, so this node's value is never too small.
#[derive(Debug, Default)]
struct Grace {
    /// Term and time of the first sight.
    since: Option<(u64, Instant)>,
}

impl Grace {
    /// Returns whole seconds, at least 1 until the leader ends the grace.
    fn left(&mut self, grace_ms: u32, term: u64, now: Instant) -> u64 {
        if grace_ms == 0 {
            self.since = None;
            return 0;
        }
        let since = match self.since {
            Some((known, since)) if known == term => since,
            _ => now,
        };
        self.since = Some((term, since));
        let left = Duration::from_millis(grace_ms.into()).saturating_sub(now.saturating_since(since));
        left.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(u64::MAX)
    }
}

/// Formats node numbers: `1,2,3`.
fn ids(nodes: &BTreeSet<NodeId>) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

pub struct StatusPublisher {
    pub me: NodeId,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Contact to the quorum while this node leads.
    pub quorum: QuorumContact,
    pub lease: LeaderLease,
    pub contact: Arc<LastContact>,
    /// Longest age of the contact while serving.
    pub contact_max: Duration,
    /// Source of the gauges and of the node's memory usage.
    pub replica: Arc<Replica>,
    pub log: Log,
    pub pending: Arc<PendingWrites>,
    /// Connections closed when serving ends.
    pub registry: Arc<Registry>,
    pub peers: PeerPool,
    /// Set before the node stops; the node then serves no clients.
    pub leaving: watch::Receiver<bool>,
    /// Set while an operator has drained this node; the node then serves no clients.
    pub drained: watch::Receiver<bool>,
    /// Admission of this node as a member.
    pub admission: Admission,
    pub publish: watch::Sender<Status>,
    pub metrics: Arc<Metrics>,
}

impl StatusPublisher {
    pub async fn run(mut self) {
        let mut caught_up = false;
        let (mut membership, mut outage, mut stuck_since) =
            ((None, Default::default()), Outage::default(), None);
        let (mut hang, mut stall, mut grace) = (Hang::default(), Stall::default(), Grace::default());
        loop {
            self.follow_membership(&mut membership);
            let view = *self.leadership.borrow_and_update();
            let contact = self.contact.within(self.contact_max);
            let is_stuck = self.is_stuck(&mut stuck_since) | self.hangs(&mut hang, &mut stall);
            if !contact || is_stuck {
                caught_up = false;
            } else if !caught_up {
                caught_up = self.catch_up(view).await;
            }
            self.follow_grace(&mut grace, view.term);
            let (leaving, drained) = (*self.leaving.borrow_and_update(), *self.drained.borrow_and_update());
            let why = self.not_serving((leaving, drained), is_stuck, contact, caught_up);
            self.publish(view, why);
            if let Some(lasts) = outage.update(why.is_none() || leaving || drained, Instant::now()) {
                let (seconds, leader) = (lasts.as_secs(), view.leader.map_or(0, |node| node.0));
                let reason = why.map_or("", NotServing::text);
                tracing::warn!(seconds, leader, term = view.term, reason, "no clients served");
            }
            tokio::select! {
                biased;
                changed = self.leadership.changed() => if changed.is_err() { return },
                changed = self.leaving.changed() => if changed.is_err() { return },
                changed = self.drained.changed() => if changed.is_err() { return },
                () = time::sleep_about(EVERY) => {}
            }
        }
    }

    /// Returns the first applicable reason.
    fn not_serving(
        &self,
        (leaving, drained): (bool, bool),
        is_stuck: bool,
        contact: bool,
        caught_up: bool,
    ) -> Option<NotServing> {
        let reasons = [
            (leaving, NotServing::Stops),
            (drained, NotServing::Drained),
            (is_stuck && self.metrics.disk_hangs.get() == 1, NotServing::DiskHangs),
            (is_stuck, NotServing::NoRoom),
            (!contact && self.lease.hears_majority(ANSWERED_WITHIN), NotServing::Electing),
            (!contact, NotServing::NoQuorum),
            (!caught_up, NotServing::CatchesUp),
        ];
        reasons.into_iter().find_map(|(applies, reason)| applies.then_some(reason))
    }

    fn follow_grace(&self, grace: &mut Grace, term: u64) {
        let grace_ms = self.replica.state.read().grace_ms();
        let (left, before) =
            (grace.left(grace_ms, term, Instant::now()), self.metrics.restore_grace_seconds.get());
        self.metrics.restore_grace_seconds.set(left);
        match (before, left) {
            (0, 1..) => tracing::warn!(
                seconds = left,
                "cluster restored: new sessions are accepted after clients of the former cluster have given up"
            ),
            (1.., 0) => tracing::info!("grace after restore ended: new sessions are accepted"),
            _ => {}
        }
    }

    /// Returns whether this node's log has waited for disk space for a while although the cluster makes
    /// progress: the node then answers no write. Without progress anywhere, the clients stay connected, since
    /// their pings are answered.
    fn is_stuck(&self, since: &mut Option<Instant>) -> bool {
        let raft = facts::facts(&self.raft);
        let is_behind =
            self.metrics.wal_waits_for_room.get() == 1 && raft.applied_index < raft.committed_index;
        *since = is_behind.then(|| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() >= STUCK_AFTER)
    }

    /// Returns whether the disk is unresponsive although the cluster makes progress: unwritten entries then
    /// accumulate in memory. Without progress anywhere, the clients stay connected, since their pings are
    /// answered.
    fn hangs(&self, hang: &mut Hang, stall: &mut Stall) -> bool {
        let raft = facts::facts(&self.raft);
        let (last, committed) = (raft.last_index.unwrap_or(0), raft.committed_index);
        self.metrics.commits_stalled.set(u64::from(stall.update(last, committed, Instant::now())));
        let (hangs, is_left_behind) = hang.update(self.log.unflushed_since(), committed, Instant::now());
        let did = self.metrics.disk_hangs.get() == 1;
        self.metrics.disk_hangs.set(u64::from(hangs));
        match (did, hangs) {
            (false, true) => {
                rare::taken(Rare::DiskHangs);
                tracing::error!(
                    seconds = DISK_HANGS_AFTER.as_secs(),
                    "the disk of the data folder is unresponsive: a write of the log does not complete. Check the disk and the \
                     kernel's log; end the node by SIGKILL if the disk stays unresponsive"
                );
            }
            (true, false) => tracing::info!("the disk responds again"),
            _ => {}
        }
        is_left_behind
    }

    /// Updates the members' addresses from the membership; cluster.toml only has the initial addresses.
    fn follow_membership(
        &self,
        (seen, members): &mut (Option<Position>, (BTreeSet<NodeId>, BTreeSet<NodeId>)),
    ) {
        let facts = facts::facts(&self.raft);
        if facts.members_at == *seen {
            return;
        }
        *seen = facts.members_at;
        let learners: BTreeSet<NodeId> = facts.learners().into_iter().collect();
        let now = (facts.members.voters.clone(), learners);
        // A new position without a change of members is the second half of a change in two steps.
        if *members != now {
            tracing::info!(voters = ids(&now.0), learners = ids(&now.1), "membership");
            *members = now;
        }
        self.quorum.follow_members(&facts.members.nodes.keys().copied().collect());
        for (id, member) in facts.members.nodes.iter().filter(|(id, _)| **id != self.me) {
            self.peers.set_address(*id, &member.dial_addr());
        }
    }

    /// Returns whether this node has applied all entries committed at the time of the call.
    async fn catch_up(&self, view: Leadership) -> bool {
        let Some(leader) = view.leader else { return false };
        if leader == self.me {
            return view.ready;
        }
        let deadline = Instant::now() + READ_INDEX_DEADLINE;
        match self.peers.call(leader, Lane::Control, &Request::ReadIndex, deadline).await {
            Ok(Response::ReadIndex { index }) => self.applied_index() >= index,
            _ => false,
        }
    }

    fn applied_index(&self) -> u64 {
        facts::applied_index(&self.raft)
    }

    fn publish(&self, view: Leadership, why: Option<NotServing>) {
        let (status, serving) = (self.status(view, why), why.is_none());
        self.gauge(&status);
        self.replica.rounds.fetch_add(1, Ordering::Relaxed);
        let before = self.publish.borrow().clone();
        if before == status {
            return;
        }
        self.publish.send(status.clone());
        if before.serving && !serving {
            if *self.leaving.borrow() || *self.drained.borrow() {
                self.registry.close_all(CloseReason::Leaving);
            } else {
                rare::taken(Rare::StoppedServing);
                let reason = why.map_or("", NotServing::text);
                tracing::warn!(reason, "stopped serving clients: closing their connections");
                self.registry.close_all(CloseReason::NotServing);
            }
        }
        if !before.serving && serving {
            self.registry.close_read_only();
            let grace_seconds = self.metrics.restore_grace_seconds.get();
            let role = status.role.as_str();
            tracing::info!(role, term = status.term, grace_seconds, "serving clients");
        }
        if let Some(leader) = status.leader {
            self.metrics.leaderships_total.begins(self.me, leader, status.term);
        }
        if before.role != status.role || before.leader != status.leader {
            self.metrics.leader_changes_total.add(u64::from(before.leader != status.leader));
            let (leader, role) = (status.leader.map_or(0, |node| node.0), status.role.as_str());
            // Without this condition, each failed election would add a line.
            if before.leader != status.leader || status.leader.is_some() {
                tracing::info!(role, term = status.term, leader, "role changed");
            } else {
                tracing::debug!(role, term = status.term, leader, "role changed");
            }
        }
    }

    fn status(&self, view: Leadership, why: Option<NotServing>) -> Status {
        let raft = facts::facts(&self.raft);
        Status {
            node: self.me,
            role: raft.role,
            term: view.term,
            leader: view.leader,
            leaderless_since_ms: self.leaderless_since_ms(view),
            serving: why.is_none(),
            not_serving: why,
            applied_index: raft.applied_index,
            committed_index: raft.committed_index,
            last_log_index: raft.last_index.unwrap_or(0),
            snapshot_index: raft.snapshot_index,
            purged_index: raft.purged_index,
            voters: raft.members.voters.iter().copied().collect(),
            learners: raft.learners(),
            replicated: raft.replicated,
            silent: Vec::new(),
            waits_for: self.admission.waits_for(),
        }
    }

    /// Returns the time of the last contact with a quorum, which is earlier than the detection of the loss.
    fn leaderless_since_ms(&self, view: Leadership) -> Option<i64> {
        if view.leader.is_some() && self.contact.within(self.contact_max) {
            return None;
        }
        let known = self.publish.borrow().leaderless_since_ms;
        let age = self.contact.age().unwrap_or_default().as_millis();
        Some(known.unwrap_or_else(|| time::wall_ms() - i64::try_from(age).unwrap_or(0)))
    }

    fn gauge(&self, status: &Status) {
        let metrics = &self.metrics;
        metrics.raft_role.set(status.role);
        metrics.raft_term.set(status.term);
        metrics.raft_last_log_index.set(status.last_log_index);
        metrics.raft_committed_index.set(status.committed_index);
        metrics.raft_applied_index.set(status.applied_index);
        metrics.raft_snapshot_index.set(status.snapshot_index);
        metrics.serving.set(u64::from(status.serving));
        metrics.member_silent_seconds.set(self.quorum.silences());
        metrics.drained.set(u64::from(*self.drained.borrow()));
        metrics.load_percent.set(self.replica.invitations.measure(time::now()));
        metrics.proposals_in_flight.set(self.pending.len() as u64);
        let state = self.replica.state.read();
        self.replica.memory.set_state(&state);
        let counts = state.counts();
        drop(state);
        metrics.sessions.set(counts.sessions);
        metrics.znodes.set(counts.znodes);
        metrics.ephemerals.set(counts.ephemerals);
        metrics.approximate_data_bytes.set(counts.approximate_data_bytes);
        metrics.locks_held.set(counts.lock_holders);
        metrics.lock_waiters.set(counts.lock_waiters);
        self.update_memory();
    }

    /// Updates the memory usage of the parts that do not report their own usage.
    fn update_memory(&self) {
        let memory = &self.replica.memory;
        memory.set(Part::Watches, self.replica.watches.lock().bytes() as u64);
        memory.set(Part::Log, self.log.bytes() as u64);
        self.metrics.memory_bytes.set(Part::ALL.map(|(part, _)| memory.get(part)));
        self.metrics.memory_limit_bytes.set(memory.limit());
        let (is_full, was_full) = (memory.is_full(), self.metrics.memory_full.get() == 1);
        if is_full == was_full {
            return;
        }
        self.metrics.memory_full.set(u64::from(is_full));
        let (held, limit) = (memory.total(), memory.limit());
        if is_full {
            tracing::warn!(
                held,
                limit,
                "memory limit reached (limits.memory_bytes): this node refuses new sessions and watches, and \
                 as leader all growing writes. Delete znodes, or raise the limit"
            );
        } else {
            tracing::info!(held, limit, "memory below limit again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_counts_down_in_seconds_and_restarts_per_leader() {
        let (mut grace, begin) = (Grace::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(grace.left(0, 1, at(0)), 0);
        assert_eq!(grace.left(40_000, 1, at(0)), 40);
        assert_eq!(grace.left(40_000, 1, at(12_500)), 28);
        assert_eq!(grace.left(40_000, 1, at(60_000)), 1, "the leader has not ended it");
        assert_eq!(grace.left(40_000, 2, at(60_000)), 40, "another leader");
        assert_eq!(grace.left(0, 2, at(61_000)), 0);
    }

    #[test]
    fn node_with_hung_disk_is_left_behind_when_others_commit() {
        let (mut hang, begin) = (Hang::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(hang.update(None, 5, at(0)), (false, false));
        assert_eq!(hang.update(Some(at(1)), 5, at(1)), (false, false));
        assert_eq!(hang.update(Some(at(9)), 7, at(12)), (false, false), "slow, and each write ends");
        assert_eq!(hang.update(Some(at(9)), 7, at(19)), (true, false), "the cluster stands still");
        assert_eq!(hang.update(Some(at(9)), 6, at(19)), (true, false), "this node leads, and knows less");
        assert_eq!(hang.update(Some(at(9)), 8, at(20)), (true, true));
        assert_eq!(hang.update(Some(at(20)), 9, at(21)), (false, false), "it has ended");
    }

    #[test]
    fn commits_stall_when_an_entry_waits_and_none_is_committed() {
        let (mut stall, begin) = (Stall::default(), Instant::now());
        let mut update = |s, last, committed| stall.update(last, committed, begin + Duration::from_secs(s));
        assert!(!update(0, 7, 7) && !update(60, 7, 7), "nothing waits");
        assert!(!update(61, 8, 7) && !update(65, 9, 7));
        assert!(update(66, 9, 7));
        assert!(!update(67, 9, 8), "slow is not stalled");
        assert!(!update(71, 9, 8) && update(72, 9, 8));
    }

    #[test]
    fn outage_is_logged_again_every_ten_seconds() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let mut logged = |ms: u64, serving| {
            outage.update(serving, begin + Duration::from_millis(ms)).map(|lasts| lasts.as_secs())
        };
        let first: Vec<u64> = (0..700).filter_map(|n| logged(n * 50, false)).collect();
        assert_eq!(first, [10, 20, 30]);
        assert_eq!(logged(65_000, false), Some(65), "late, and once");
        assert_eq!(logged(69_000, false), None);
        assert_eq!(logged(70_000, false), Some(70));
        assert_eq!(logged(80_000, true), None);
        assert_eq!(logged(81_000, false), None, "another one begins");
        assert_eq!(logged(91_000, false), Some(10));
    }
}
