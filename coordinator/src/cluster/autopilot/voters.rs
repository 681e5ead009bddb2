//! The leader makes learners voters and removes dead voters, as `health.rs` decides.
//!
//! Invariant: each step is decided for one membership and refused if that has changed meanwhile.

use std::time::Duration;

use rowlock_consensus::raft::facts;
use rowlock_env::time::{self, Instant};
use rowlock_types::reconfiguration::{Members, Wanted};

use super::Autopilot;
use super::health::{MemberChange, MemberView, Rules, Watch, decide};
use crate::audit::{AuditRecord, Client, Event, OK};

/// How often the leader looks at the members.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// More time than this between two looks does not count: the leader did not see what happened in it.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// A member that has acknowledged nothing for so long does not answer.
const UP_WITHIN: Duration = Duration::from_secs(2);
/// A step that was refused is decided again after this time.
const AGAIN: Duration = Duration::from_secs(5);

/// The leader's observations of the members.
#[derive(Debug, Default)]
pub(super) struct Looks {
    watch: Watch,
    last: Option<Instant>,
    /// Not before: the last step was refused.
    again_at: Option<Instant>,
}

impl Autopilot {
    fn rules(&self) -> Rules {
        Rules {
            promote_after: self.config.promote_after_ms.map(Duration::from_millis),
            remove_dead_after: self.config.remove_dead_after_ms.map(Duration::from_millis),
            min_voters: self.config.min_voters as usize,
        }
    }

    /// Looks at the members if it is time to, and does the next step, if one is due.
    pub(super) async fn see_to_voters(&self, looks: &mut Looks) {
        let rules = self.rules();
        if rules.promote_after.is_none() && rules.remove_dead_after.is_none() {
            return;
        }
        let view = *self.leadership.borrow();
        if !view.is_led_by(self.me) {
            *looks = Looks::default();
            return;
        }
        let now = time::now();
        let elapsed = looks.last.map_or(Duration::ZERO, |last| now.saturating_since(last));
        if looks.last.is_some() && elapsed < LOOK_EVERY {
            return;
        }
        looks.last = Some(now);
        // On the way from one set of voters to another.
        let Some((members, version)) = facts::settled_members(&self.raft) else { return };
        let facts = facts::facts(&self.raft);
        let seen = self.seen(&members, &facts);
        let log_end = facts.last_index.unwrap_or(0);
        let stands = looks.watch.note(view.term, elapsed.min(LOOK_MAX), log_end, &seen);
        if looks.again_at.is_some_and(|at| now < at) {
            return;
        }
        if let Some(step) = decide(stands, rules) {
            let is_done = self.carry_out(step, &members, version).await;
            looks.again_at = (!is_done).then(|| time::now() + AGAIN);
        }
    }

    fn seen(&self, members: &Members, facts: &facts::Facts) -> Vec<MemberView> {
        let up = facts::alive_members(&self.raft, UP_WITHIN);
        let seen = |node| {
            let stored = facts.replicated.iter().find(|(other, _)| *other == node).map_or(0, |(_, at)| *at);
            let is_me = node == self.me;
            MemberView {
                node,
                votes: members.voters.contains(&node),
                answers: is_me || up.contains(&node),
                stored: if is_me { facts.last_index.unwrap_or(0) } else { stored },
            }
        };
        members.nodes.keys().copied().map(seen).collect()
    }

    /// Whether it was done.
    pub(super) async fn carry_out(&self, step: MemberChange, members: &Members, version: u64) -> bool {
        let config_id = i64::try_from(version).expect("Invariant: an index of the log fits");
        let (wanted, node, op) = match step {
            MemberChange::Promote(node) => {
                let member = &members.nodes[&node];
                let place = member.zookeeper_addr();
                let line = format!("server.{node}={place}:participant;{}", member.client_addr);
                (Wanted { joining: Some(line), config_id, ..Wanted::default() }, node, "promote")
            }
            MemberChange::Remove(node) => {
                assert!(node != self.me, "a leader answers itself");
                (Wanted { leaving: Some(node.to_string()), config_id, ..Wanted::default() }, node, "remove")
            }
        };
        match self.reconfigurer.reconfigure(&wanted).await {
            Ok(Ok(index)) => {
                match step {
                    MemberChange::Promote(_) => {
                        self.metrics.autopilot_promoted_total.inc();
                        tracing::info!(%node, index, "a learner has had the log for long enough: it votes now");
                    }
                    MemberChange::Remove(_) => {
                        self.metrics.autopilot_removed_total.inc();
                        tracing::warn!(
                            %node, index,
                            "a voter has been silent for too long and was removed: replace it, and give the new node another number"
                        );
                    }
                }
                let (detail, client) = (format!("autopilot: node {node}"), Client::default());
                self.audit.record(&AuditRecord {
                    event: Event::Admin,
                    op,
                    paths: &[],
                    detail: &detail,
                    result: OK,
                    missing: None,
                    client,
                });
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
