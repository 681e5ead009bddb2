//! Publishes this node's status: role, indices, and whether clients are served.
//!
//! A node serves while it is in contact with a quorum and has applied everything that was committed when it
//! (re)gained that contact. When it stops serving, all client connections are closed, and their clients turn
//! to other nodes.

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

use crate::delivery::outbox::CloseReason;
use crate::delivery::registry::Registry;
use crate::proposer::pending::PendingWrites;
use crate::replica::Replica;
use rowlock_sessions::last_contact::LastContact;

/// How often the status is published, when nothing happens.
const EVERY: Duration = Duration::from_millis(50);
/// A majority that has said how it would vote within this time counts as connected.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Deadline for asking the leader how far to catch up.
const READ_INDEX_DEADLINE: Duration = Duration::from_secs(1);

/// A node whose log waits for room for so long serves no client, if the others go on.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// A disk that has not finished a write for so long does not answer. Flushes of some seconds are slow, and
/// the node serves.
pub const DISK_HANGS_AFTER: Duration = Duration::from_secs(5);

/// How often a node that serves no clients says so again.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A time without service: what began it is said at once, and that it lasts every ten seconds.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    said: u32,
}

impl Outage {
    /// How long it has lasted, when that is to be said.
    fn note(&mut self, serving: bool, now: Instant) -> Option<Duration> {
        if serving {
            *self = Outage::default();
            return None;
        }
        let lasts = now.saturating_since(*self.since.get_or_insert(now));
        let due = lasts >= SAY_EVERY * (self.said + 1);
        if due {
            self.said = u32::try_from(lasts.as_secs() / SAY_EVERY.as_secs()).unwrap_or(u32::MAX - 1);
        }
        due.then_some(lasts)
    }
}

/// A disk that has stopped to answer.
#[derive(Debug, Default)]
struct Hang {
    /// The write that has waited longest, and what was committed when it was first seen.
    oldest: Option<(Instant, u64)>,
}

impl Hang {
    /// Whether the write of `unflushed_since` hangs, and whether the cluster goes on without it.
    fn note(&mut self, unflushed_since: Option<Instant>, committed: u64, now: Instant) -> (bool, bool) {
        self.oldest = unflushed_since.map(|since| match self.oldest {
            // A new leader may know less of what is committed than the one before.
            Some((known, then)) if known == since => (known, then.min(committed)),
            _ => (since, committed),
        });
        let Some((since, then)) = self.oldest else { return (false, false) };
        let hangs = now.saturating_since(since) >= DISK_HANGS_AFTER;
        (hangs, hangs && committed > then)
    }
}

/// Entries that wait for their commit: a majority of the disks may hang while this one does not.
#[derive(Debug, Default)]
struct Stall {
    /// The commit index, and since when it stands still.
    since: Option<(u64, Instant)>,
}

impl Stall {
    /// Whether nothing was committed for as long as a disk may take, although an entry waits.
    fn note(&mut self, last: u64, committed: u64, now: Instant) -> bool {
        self.since = (last > committed).then_some(match self.since {
            Some((known, since)) if known == committed => (known, since),
            _ => (committed, now),
        });
        self.since.is_some_and(|(_, since)| now.saturating_since(since) >= DISK_HANGS_AFTER)
    }
}

/// How much is left of the grace of a cluster that was restored. The leader measures it from the beginning of
/// its term, this node from when it saw that: what it tells is never too little.
#[derive(Debug, Default)]
struct Grace {
    /// In which term it was first seen, and when.
    since: Option<(u64, Instant)>,
}

impl Grace {
    /// Whole seconds, at least 1 until the leader has ended it.
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

/// Node numbers as text: `1,2,3`.
fn ids(nodes: &BTreeSet<NodeId>) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

/// Dependencies of the task.
pub struct StatusPublisher {
    pub me: NodeId,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Contact to the quorum while this node leads.
    pub quorum: QuorumContact,
    pub lease: LeaderLease,
    /// Contact to a quorum.
    pub contact: Arc<LastContact>,
    /// Contact older than this ends serving.
    pub contact_max: Duration,
    /// For the gauges, and for what this node holds in memory.
    pub replica: Arc<Replica>,
    pub log: Log,
    pub pending: Arc<PendingWrites>,
    /// Whom to close when serving ends.
    pub registry: Arc<Registry>,
    /// The way to the leader.
    pub peers: PeerPool,
    /// This node is about to stop: it serves no client any more.
    pub leaving: watch::Receiver<bool>,
    /// An operator has drained this node: it serves no client for now.
    pub drained: watch::Receiver<bool>,
    /// Whether this node takes part.
    pub admission: Admission,
    /// Where the status goes.
    pub publish: watch::Sender<Status>,
    pub metrics: Arc<Metrics>,
}

impl StatusPublisher {
    /// Runs until its channels close.
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
            if let Some(lasts) = outage.note(why.is_none() || leaving || drained, Instant::now()) {
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

    /// The first reason that applies.
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
                "cluster restored: no session is opened until clients of the former cluster have given up"
            ),
            (1.., 0) => tracing::info!("grace after restore ended: sessions are opened"),
            _ => {}
        }
    }

    /// Whether this node's log has waited for room for a while, and the cluster goes on without it: it
    /// answers no write then. While none goes on, its clients stay: their heartbeats are answered.
    fn is_stuck(&self, since: &mut Option<Instant>) -> bool {
        let raft = facts::facts(&self.raft);
        let is_behind =
            self.metrics.wal_waits_for_room.get() == 1 && raft.applied_index < raft.committed_index;
        *since = is_behind.then(|| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() >= STUCK_AFTER)
    }

    /// Whether the disk does not answer, and the cluster goes on without it: what this node cannot store it
    /// piles up in memory. While the cluster stands still, its clients stay: their heartbeats are answered.
    fn hangs(&self, hang: &mut Hang, stall: &mut Stall) -> bool {
        let raft = facts::facts(&self.raft);
        let (last, committed) = (raft.last_index.unwrap_or(0), raft.committed_index);
        self.metrics.commits_stalled.set(u64::from(stall.note(last, committed, Instant::now())));
        let (hangs, is_left_behind) = hang.note(self.log.unflushed_since(), committed, Instant::now());
        let did = self.metrics.disk_hangs.get() == 1;
        self.metrics.disk_hangs.set(u64::from(hangs));
        match (did, hangs) {
            (false, true) => {
                rare::taken(Rare::DiskHangs);
                tracing::error!(
                    seconds = DISK_HANGS_AFTER.as_secs(),
                    "the disk of the data folder does not answer: a write of the log has not ended. Check the disk and the \
                     kernel's log; end the node by SIGKILL if it does not come back"
                );
            }
            (true, false) => tracing::info!("the disk answers again"),
            _ => {}
        }
        is_left_behind
    }

    /// Where the other members are comes with the membership; cluster.toml knows only those of its time.
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
        // A position without a change is that of the second half of a change in two steps.
        if *members != now {
            tracing::info!(voters = ids(&now.0), learners = ids(&now.1), "membership");
            *members = now;
        }
        self.quorum.follow_members(&facts.members.nodes.keys().copied().collect());
        for (id, member) in facts.members.nodes.iter().filter(|(id, _)| **id != self.me) {
            self.peers.set_address(*id, &member.dial_addr());
        }
    }

    /// Whether everything is applied here that was committed when this was asked.
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
            // While there is none, every election that fails would be a line.
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

    /// From the last contact to a quorum on, which is earlier than the moment in which the loss is noticed.
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
        self.weigh();
    }

    /// Brings what this node holds in memory up to date, as far as the parts do not do so themselves.
    fn weigh(&self) {
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
                "this node holds as much memory as limits.memory_bytes allows: it refuses new sessions and watches, and \
                 while it leads all writes that grow. Delete znodes, or give it more"
            );
        } else {
            tracing::info!(held, limit, "this node has memory again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_is_told_in_whole_seconds_until_it_is_ended_and_begins_anew_with_each_leader() {
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
    fn a_disk_hangs_when_one_write_does_not_end_and_its_node_is_left_behind_when_others_commit() {
        let (mut hang, begin) = (Hang::default(), Instant::now());
        let at = |s| begin + Duration::from_secs(s);
        assert_eq!(hang.note(None, 5, at(0)), (false, false));
        assert_eq!(hang.note(Some(at(1)), 5, at(1)), (false, false));
        assert_eq!(hang.note(Some(at(9)), 7, at(12)), (false, false), "slow, and each write ends");
        assert_eq!(hang.note(Some(at(9)), 7, at(19)), (true, false), "the cluster stands still");
        assert_eq!(hang.note(Some(at(9)), 6, at(19)), (true, false), "this node leads, and knows less");
        assert_eq!(hang.note(Some(at(9)), 8, at(20)), (true, true));
        assert_eq!(hang.note(Some(at(20)), 9, at(21)), (false, false), "it has ended");
    }

    #[test]
    fn commits_stall_when_an_entry_waits_and_none_is_committed() {
        let (mut stall, begin) = (Stall::default(), Instant::now());
        let mut note = |s, last, committed| stall.note(last, committed, begin + Duration::from_secs(s));
        assert!(!note(0, 7, 7) && !note(60, 7, 7), "nothing waits");
        assert!(!note(61, 8, 7) && !note(65, 9, 7));
        assert!(note(66, 9, 7));
        assert!(!note(67, 9, 8), "slow is not stalled");
        assert!(!note(71, 9, 8) && note(72, 9, 8));
    }

    #[test]
    fn a_time_without_service_is_said_again_every_ten_seconds() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let mut said = |ms: u64, serving| {
            outage.note(serving, begin + Duration::from_millis(ms)).map(|lasts| lasts.as_secs())
        };
        let first: Vec<u64> = (0..700).filter_map(|n| said(n * 50, false)).collect();
        assert_eq!(first, [10, 20, 30]);
        assert_eq!(said(65_000, false), Some(65), "late, and once");
        assert_eq!(said(69_000, false), None);
        assert_eq!(said(70_000, false), Some(70));
        assert_eq!(said(80_000, true), None);
        assert_eq!(said(81_000, false), None, "another one begins");
        assert_eq!(said(91_000, false), Some(10));
    }
}
