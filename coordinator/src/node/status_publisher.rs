//! Publishes this node's status: role, indices, and whether the node serves clients.
//!
//! A node serves while it is in contact with a quorum and has applied all entries committed when the contact
//! began. When a node stops serving, it closes all client connections, and the clients connect to other
//! nodes.
//!
//! Detectors of outages, unresponsive disks, stalled commits and the end of a restored cluster's grace. Pure:
//! each takes the time of its observation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rowlock_consensus::node_hook::Position;
use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::raft::elections::Leadership;
use rowlock_consensus::raft::facts::{self, Facts};
use rowlock_consensus::status::{NotServing, Status};
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::rare::{self, Rare};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::memory::Part;
use rowlock_proto::NodeId;

use crate::node::context::NodeContext;
use crate::node::delivery::outbox::CloseReason;

/// A majority with vote responses within this time counts as reachable.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Deadline for the leader's read index.
const READ_INDEX_DEADLINE: Duration = Duration::from_secs(1);

/// A node whose log has waited for disk space this long stops serving, if the other nodes make progress.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Formats node numbers: `1,2,3`.
fn ids(nodes: &BTreeSet<NodeId>) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(",")
}

/// Duty that checks and publishes the node's status.
pub struct StatusPublisher {
    node: Arc<NodeContext>,
    publish: watch::Sender<Status>,
    leadership: watch::Receiver<Leadership>,
    leaving: watch::Receiver<bool>,
    drained: watch::Receiver<bool>,
    caught_up: bool,
    membership: SeenMembers,
    outage: Outage,
    /// Begin of the log's wait for disk space while the other nodes make progress.
    stuck_since: Option<Instant>,
    hang: Hang,
    stall: Stall,
    grace: Grace,
}

/// Newest membership that this node has seen: its position in the log, voters and learners.
#[derive(Default)]
struct SeenMembers {
    at: Option<Position>,
    voters: BTreeSet<NodeId>,
    learners: BTreeSet<NodeId>,
}

impl Duty for StatusPublisher {
    /// A closed channel: the node stops.
    type End = ();

    async fn turn(&mut self) -> Result<Option<Instant>, ()> {
        let raft = facts::facts(&self.node.raft);
        self.follow_membership(raft.members_at);
        let view = *self.leadership.borrow_and_update();
        let contact = self.node.contact.within(self.node.contact_max());
        let is_stuck = self.is_stuck(&raft) | self.hangs(&raft);
        self.measure_unflushed();
        if decides!("node-has-no-contact", !contact || is_stuck) {
            self.caught_up = false;
        } else if decides!("node-is-not-caught-up", !self.caught_up) {
            self.caught_up = self.catch_up(view).await;
        }
        self.follow_grace(view.term);
        let (leaving, drained) = (*self.leaving.borrow_and_update(), *self.drained.borrow_and_update());
        let why = self.not_serving((leaving, drained), is_stuck, contact);
        self.publish(view, why);
        if let Some(lasts) = self.outage.update(why.is_none() || leaving || drained, Instant::now()) {
            let (seconds, leader) = (lasts.as_secs(), view.leader.map_or(0, |node| node.0));
            let reason = why.map_or("", NotServing::text);
            tracing::warn!(seconds, leader, term = view.term, reason, "no clients served");
        }
        Ok(Some(time::next_beat()))
    }

    async fn event(&mut self) -> Result<(), ()> {
        let changed = tokio::select! {
            biased;
            changed = self.leadership.changed() => changed,
            changed = self.leaving.changed() => changed,
            changed = self.drained.changed() => changed,
        };
        changed.map_err(|_| ())
    }
}

impl StatusPublisher {
    pub fn new(node: Arc<NodeContext>, publish: watch::Sender<Status>) -> StatusPublisher {
        StatusPublisher {
            publish,
            leadership: node.leadership.clone(),
            leaving: node.leaving.subscribe(),
            drained: node.drained.subscribe(),
            node,
            caught_up: false,
            membership: SeenMembers::default(),
            outage: Outage::default(),
            stuck_since: None,
            hang: Hang::default(),
            stall: Stall::default(),
            grace: Grace::default(),
        }
    }

    /// Returns the first applicable reason.
    fn not_serving(
        &self,
        (leaving, drained): (bool, bool),
        is_stuck: bool,
        contact: bool,
    ) -> Option<NotServing> {
        let reasons = [
            (leaving, NotServing::Stops),
            (drained, NotServing::Drained),
            (is_stuck && self.node.metrics.disk_hangs.get() == 1, NotServing::DiskHangs),
            (is_stuck, NotServing::NoRoom),
            (!contact && self.node.lease.hears_majority(ANSWERED_WITHIN), NotServing::Electing),
            (!contact, NotServing::NoQuorum),
            (!self.caught_up, NotServing::CatchesUp),
        ];
        reasons.into_iter().find_map(|(applies, reason)| applies.then_some(reason))
    }

    fn measure_unflushed(&self) {
        let (commands, age) = self.node.log.unflushed().unwrap_or_default();
        self.node.metrics.wal_unflushed_commands.set(commands.into());
        self.node.metrics.wal_unflushed_seconds.set(age);
    }

    fn follow_grace(&mut self, term: u64) {
        let grace_ms = self.node.replica.state.read().grace_ms();
        let (left, before) =
            (self.grace.left(grace_ms, term, Instant::now()), self.node.metrics.restore_grace_seconds.get());
        self.node.metrics.restore_grace_seconds.set(left);
        match (before, left) {
            (0, 1..) => tracing::warn!(
                seconds = left,
                "cluster restored, or restarted after a loss of power: new sessions are accepted after all former clients have \
                 given up"
            ),
            (1.., 0) => tracing::info!("grace ended: new sessions are accepted"),
            _ => {}
        }
    }

    /// Returns whether this node's log has waited for disk space for a while although the cluster makes
    /// progress: the node then answers no write. Without progress anywhere, the clients stay connected, since
    /// their pings are answered.
    fn is_stuck(&mut self, raft: &Facts) -> bool {
        let is_behind =
            self.node.metrics.wal_waits_for_room.get() == 1 && raft.applied_index < raft.committed_index;
        self.stuck_since = is_behind.then(|| self.stuck_since.unwrap_or_else(Instant::now));
        self.stuck_since.is_some_and(|since| since.elapsed() >= STUCK_AFTER)
    }

    /// Returns whether the disk is unresponsive although the cluster makes progress: unwritten entries then
    /// accumulate in memory. Without progress anywhere, the clients stay connected, since their pings are
    /// answered.
    fn hangs(&mut self, raft: &Facts) -> bool {
        let (last, committed) = (raft.last_index.unwrap_or(0), raft.committed_index);
        self.node.metrics.commits_stalled.set(u64::from(self.stall.update(last, committed, Instant::now())));
        let (hangs, is_left_behind) =
            self.hang.update(self.node.log.writes_since(), committed, Instant::now());
        let did = self.node.metrics.disk_hangs.get() == 1;
        self.node.metrics.disk_hangs.set(u64::from(hangs));
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
    fn follow_membership(&mut self, at: Option<Position>) {
        if at == self.membership.at {
            return;
        }
        let (members, at) = facts::members(&self.node.raft);
        let now = SeenMembers { at, learners: members.learners().collect(), voters: members.voters };
        // A new position without a change of members is the second half of a change in two steps.
        if (&self.membership.voters, &self.membership.learners) != (&now.voters, &now.learners) {
            tracing::info!(voters = ids(&now.voters), learners = ids(&now.learners), "membership");
        }
        self.membership = now;
        self.node.quorum.follow_members(&members.nodes.keys().copied().collect());
        for (id, member) in members.nodes.iter().filter(|(id, _)| **id != self.node.me) {
            self.node.peers.set_address(*id, &member.dial_addr());
        }
    }

    /// Returns whether this node has applied all entries committed at the time of the call.
    async fn catch_up(&self, view: Leadership) -> bool {
        let Some(leader) = view.leader else { return false };
        if leader == self.node.me {
            return view.ready;
        }
        let deadline = Instant::now() + READ_INDEX_DEADLINE;
        match self.node.peers.call(leader, Lane::Control, &Request::ReadIndex, deadline).await {
            Ok(Response::ReadIndex { index }) => self.applied_index() >= index,
            _ => false,
        }
    }

    fn applied_index(&self) -> u64 {
        facts::applied_index(&self.node.raft)
    }

    fn publish(&self, view: Leadership, why: Option<NotServing>) {
        let (status, serving) = (self.status(view, why), why.is_none());
        self.gauge(&status);
        self.node.replica.rounds.fetch_add(1, Ordering::Relaxed);
        if *self.publish.borrow() == status {
            return;
        }
        let before = self.publish.borrow().clone();
        self.publish.send(status.clone());
        if before.serving && !serving {
            if *self.leaving.borrow() || *self.drained.borrow() {
                self.node.registry.close_all(CloseReason::Leaving);
            } else {
                rare::taken(Rare::StoppedServing);
                let reason = why.map_or("", NotServing::text);
                tracing::warn!(reason, "stopped serving clients: closing their connections");
                self.node.registry.close_all(CloseReason::NotServing);
            }
        }
        if !before.serving && serving {
            self.node.registry.close_read_only();
            let grace_seconds = self.node.metrics.restore_grace_seconds.get();
            let role = status.role.as_str();
            tracing::info!(role, term = status.term, grace_seconds, "serving clients");
        }
        if let Some(leader) = status.leader {
            self.node.metrics.leaderships_total.begins(self.node.me, leader, status.term);
        }
        if before.role != status.role || before.leader != status.leader {
            self.node.metrics.leader_changes_total.add(u64::from(before.leader != status.leader));
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
        let raft = facts::facts(&self.node.raft);
        Status {
            node: self.node.me,
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
            voters: self.membership.voters.iter().copied().collect(),
            learners: self.membership.learners.iter().copied().collect(),
            replicated: raft.replicated,
            silent: Vec::new(),
            waits_for: self.node.admission.waits_for(),
        }
    }

    /// Returns the time of the last contact with a quorum, which is earlier than the detection of the loss.
    fn leaderless_since_ms(&self, view: Leadership) -> Option<i64> {
        if view.leader.is_some() && self.node.contact.within(self.node.contact_max()) {
            return None;
        }
        let known = self.publish.borrow().leaderless_since_ms;
        let age = self.node.contact.age().unwrap_or_default().as_millis();
        Some(known.unwrap_or_else(|| time::wall_ms() - i64::try_from(age).unwrap_or(0)))
    }

    fn gauge(&self, status: &Status) {
        let metrics = &self.node.metrics;
        metrics.raft_role.set(status.role);
        metrics.raft_committed_index.set(status.committed_index);
        metrics.raft_applied_index.set(status.applied_index);
        metrics.raft_snapshot_index.set(status.snapshot_index);
        metrics.serving.set(u64::from(status.serving));
        metrics.member_silent_seconds.set(self.node.quorum.silences());
        metrics.drained.set(u64::from(*self.drained.borrow()));
        metrics.load_percent.set(self.node.replica.invitations.measure(time::now()));
        let state = self.node.replica.state.read();
        self.node.replica.memory.set_state(&state);
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
        let memory = &self.node.replica.memory;
        memory.set(Part::Watches, self.node.replica.watches.lock().bytes() as u64);
        self.node.metrics.memory_bytes.set(Part::ALL.map(|(part, _)| memory.get(part)));
        self.node.metrics.memory_limit_bytes.set(memory.limit());
        let (is_full, was_full) = (memory.is_full(), self.node.metrics.memory_full.get() == 1);
        if is_full == was_full {
            return;
        }
        self.node.metrics.memory_full.set(u64::from(is_full));
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
    /// Records the disk's progress. Returns whether the write pending since `writes_since` hangs, and
    /// whether the cluster has made progress since.
    fn update(&mut self, writes_since: Option<Instant>, committed: u64, now: Instant) -> (bool, bool) {
        self.oldest = writes_since.map(|since| match self.oldest {
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

#[cfg(test)]
mod tests;
