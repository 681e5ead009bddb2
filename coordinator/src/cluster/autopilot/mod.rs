//! Membership changes without a request: readmission of wiped nodes, promotion of learners, removal of dead
//! voters.
//!
//! In the flow: the folder records nodes refused for another data folder. The leader removes such a node from
//! the members (`readmit.rs`). Then each node accepts the new folder, and the returned node joins and asks to
//! vote like a new node (`bootstrap/`). The leader also measures each member's times of answers and of
//! silence (`health.rs`), and changes the voters accordingly.
//!
//! Must never count the vote or acknowledgement of a node without memory of its votes and its log, while that
//! node is still a voter.
//!
//! Invariant: each change of voters is decided for one membership, and refused if the membership has changed
//! meanwhile.

mod health;
mod readmit;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::facts;
use rowlock_consensus::reconfiguration::{Members, Wanted};
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::time::{self, Instant};

use crate::node::audit::{AuditRecord, Client, Event};
use crate::node::context::NodeContext;
use health::{MemberChange, MemberView, Rules, Watch, decide};
use readmit::Readmission;

/// Interval of the autopilot's scans.
const EVERY: Duration = time::BEAT.saturating_mul(2);

/// Duty that changes the members without a request. A step whose future is dropped may still happen;
/// otherwise the next leader repeats the step.
pub struct Autopilot {
    changes: MemberChanges,
    readmission: Readmission,
    scan: Scan,
}

/// Changes of the members on behalf of the autopilot.
struct MemberChanges {
    node: Arc<NodeContext>,
}

impl Autopilot {
    pub fn new(node: Arc<NodeContext>) -> Autopilot {
        Autopilot {
            changes: MemberChanges { node },
            readmission: Readmission::default(),
            scan: Scan::default(),
        }
    }
}

impl Duty for Autopilot {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        if self.changes.node.config.autopilot.readmit_wiped {
            self.changes.readmit(&mut self.readmission).await;
        }
        self.changes.scan_voters(&mut self.scan).await;
        Ok(Some(time::about(EVERY)))
    }
}

/// Interval at which the leader scans the members.
const SCAN_VOTERS_EVERY: Duration = Duration::from_millis(500);
/// Upper bound on the time counted between two scans: the leader did not observe a longer gap.
const SCAN_GAP_MAX: Duration = Duration::from_secs(1);
/// A member without an acknowledgement within this time does not answer.
const UP_WITHIN: Duration = Duration::from_secs(2);
/// Pause after a refused step.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The leader's observations of the members.
#[derive(Debug, Default)]
struct Scan {
    watch: Watch,
    last: Option<Instant>,
    /// Earliest time of the next step after a refused one.
    retry_at: Option<Instant>,
}

impl MemberChanges {
    fn rules(&self) -> Rules {
        Rules {
            promote_after: self.node.config.autopilot.promote_after_ms.map(Duration::from_millis),
            remove_dead_after: self.node.config.autopilot.remove_dead_after_ms.map(Duration::from_millis),
            min_voters: self.node.config.autopilot.min_voters as usize,
        }
    }

    /// Scans the members if a scan is due, and carries out the next step, if one follows.
    async fn scan_voters(&self, scan: &mut Scan) {
        let rules = self.rules();
        if rules.promote_after.is_none() && rules.remove_dead_after.is_none() {
            return;
        }
        let view = *self.node.leadership.borrow();
        if decides!("autopilot-does-not-lead", !view.is_led_by(self.node.me)) {
            *scan = Scan::default();
            return;
        }
        let now = time::now();
        let elapsed = scan.last.map_or(Duration::ZERO, |last| now.saturating_since(last));
        if scan.last.is_some() && elapsed < SCAN_VOTERS_EVERY {
            return;
        }
        scan.last = Some(now);
        // During a change of voters, the membership is not settled.
        let Some((members, version)) = facts::settled_members(&self.node.raft) else { return };
        let facts = facts::facts(&self.node.raft);
        let seen = self.seen(&members, &facts);
        let log_end = facts.last_index.unwrap_or(0);
        let healths = scan.watch.record(view.term, elapsed.min(SCAN_GAP_MAX), log_end, &seen);
        if scan.retry_at.is_some_and(|at| now < at) {
            return;
        }
        if let Some(step) = decide(healths, rules) {
            let is_done = self.carry_out(step, &members, version).await;
            scan.retry_at = (!is_done).then(|| time::now() + RETRY_PAUSE);
        }
    }

    fn seen(&self, members: &Members, facts: &facts::Facts) -> Vec<MemberView> {
        let up = facts::alive_members(&self.node.raft, UP_WITHIN);
        let seen = |node| {
            let stored = facts.replicated.iter().find(|(other, _)| *other == node).map_or(0, |(_, at)| *at);
            let is_me = node == self.node.me;
            MemberView {
                node,
                votes: members.voters.contains(&node),
                answers: is_me || up.contains(&node),
                stored: if is_me { facts.last_index.unwrap_or(0) } else { stored },
            }
        };
        members.nodes.keys().copied().map(seen).collect()
    }

    /// Carries out the step. Returns whether the change is committed.
    async fn carry_out(&self, step: MemberChange, members: &Members, version: u64) -> bool {
        let config_id = i64::try_from(version).expect("Invariant: an index of the log fits");
        let (wanted, node, op) = match step {
            MemberChange::Promote(node) => {
                let member = &members.nodes[&node];
                let place = member.zookeeper_addr();
                let line = format!("server.{node}={place}:participant;{}", member.client_addr);
                (Wanted { joining: Some(line), config_id, ..Wanted::default() }, node, "promote")
            }
            MemberChange::Remove(node) => {
                assert!(node != self.node.me, "a leader answers itself");
                (Wanted { leaving: Some(node.to_string()), config_id, ..Wanted::default() }, node, "remove")
            }
        };
        match self.node.reconfigurer.reconfigure(&wanted).await {
            Ok(Ok(index)) => {
                match step {
                    MemberChange::Promote(_) => {
                        self.node.metrics.autopilot_promoted_total.inc();
                        tracing::info!(%node, index, "a learner has had the log for long enough: it votes now");
                    }
                    MemberChange::Remove(_) => {
                        self.node.metrics.autopilot_removed_total.inc();
                        tracing::warn!(
                            %node, index,
                            "a voter has been silent for too long and was removed: replace it, and give the new node another number"
                        );
                    }
                }
                let detail = format!("autopilot: node {node}");
                let record = AuditRecord::new(Event::Admin, op, Client::default());
                self.node.audit.record(&AuditRecord { detail: &detail, ..record });
                true
            }
            Ok(Err(code)) => {
                tracing::info!(%node, op, %code, "membership change of the autopilot refused; it tries again");
                false
            }
            Err(refusal) => {
                tracing::info!(%node, op, %refusal, "the autopilot's change of members was refused; it tries again");
                false
            }
        }
    }
}
