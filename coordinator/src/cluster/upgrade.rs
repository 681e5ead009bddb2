//! Upgrade of the cluster's version to a new release: automatic when all members have been healthy for a
//! while, or on an operator's request.
//!
//! In the flow: the leader's duties call the duty [`Upgrades`] at intervals; an operator's request reaches
//! [`Upgrades::carry_out`] of the leader through [`crate::cluster::operations`]. All decisions go through
//! the log.
//!
//! Must never raise the version unless every member, voter or learner, is known to support the new one: a
//! member without that support could not continue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::operation::UpgradeStep;
use rowlock_consensus::raft::facts;
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_state::ClusterVersion;
use rowlock_state::command::Command;
use rowlock_state::version::Versions;
use serde_json::{Value, json};

use crate::config::Finalize;
use crate::node::context::{NodeContext, Replica};
use crate::node::leader_duties::{Due, LeaderDuty};
use crate::node::proposer::of_the_cluster;

/// A member without an acknowledgement within this time is not up.
const UP_WITHIN: Duration = Duration::from_secs(2);
const APPLIED_DEADLINE: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// State of the upgrade duty.
pub struct Upgrades {
    node: Arc<NodeContext>,
    /// Time for which all members have been ready.
    health: Mutex<Health>,
}

impl LeaderDuty for Arc<Upgrades> {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        Due { commands: self.raised(term, now).into_iter().collect(), next: Some(time::next_beat()) }
    }
}

impl Upgrades {
    pub fn new(node: Arc<NodeContext>) -> Upgrades {
        Upgrades { node, health: Mutex::default() }
    }

    /// Returns the command that the leader of this term must propose now without a request.
    fn raised(&self, term: u64, now: Instant) -> Option<Command> {
        if self.node.peers.releases().ours().most <= self.node.replica.version() {
            // Not all members support a later version, since this one does not.
            *self.health.lock() = Health::default();
            return None;
        }
        let survey = self.survey();
        let state = survey.state();
        let ready_for = self.health.lock().record(term, &state, now)?;
        match state {
            UpgradeState::Ready(to)
                if decides!(
                    "upgrade-is-due",
                    self.is_automatic(&survey) && ready_for >= self.health_needed()
                ) =>
            {
                Some(Command::RaiseVersion { to })
            }
            _ => None,
        }
    }

    /// Carries out an operator's request; returns the state of the upgrade afterwards.
    ///
    /// # Errors
    /// Nothing happened: `NewConfigNoQuorum` (a member does not support a later version, or does not answer),
    /// `BadArguments` (no upgrade to hold). `OperationTimeout`: the change may still happen.
    ///
    /// # Cancel safety
    /// A begun step continues.
    pub async fn carry_out(&self, step: UpgradeStep) -> Result<Value, ErrorCode> {
        let state = self.survey().state();
        match (step, state) {
            (UpgradeStep::Show, _) | (UpgradeStep::Finalize, UpgradeState::Done) => Ok(self.status()),
            (UpgradeStep::Finalize, UpgradeState::Waits(_)) => Err(ErrorCode::NewConfigNoQuorum),
            (UpgradeStep::Finalize, UpgradeState::Ready(to)) => {
                let number = to.number;
                self.propose([Command::HoldVersion { hold: false }, Command::RaiseVersion { to }]).await?;
                self.wait_until_applied(|replica| replica.version() >= number).await
            }
            (UpgradeStep::Hold, UpgradeState::Done) => Err(ErrorCode::BadArguments),
            (UpgradeStep::Hold, _) => {
                self.propose([Command::HoldVersion { hold: true }]).await?;
                let held = self.wait_until_applied(|replica| replica.state.read().is_version_held()).await?;
                if !matches!(self.survey().state(), UpgradeState::Done) {
                    return Ok(held);
                }
                // The rise was first in the log, and this hold would stop the next one.
                self.propose([Command::HoldVersion { hold: false }]).await?;
                Err(ErrorCode::BadArguments)
            }
        }
    }

    fn status(&self) -> Value {
        let survey = self.survey();
        let since = self.health.lock().since(self.node.leadership.borrow().term);
        let since = since.filter(|_| self.is_automatic(&survey));
        let left = since.map(|since| self.health_needed().saturating_sub(since.elapsed()));
        survey.document(self.node.config.upgrade.finalize, left)
    }

    fn is_automatic(&self, survey: &Survey) -> bool {
        self.node.config.upgrade.finalize == Finalize::Auto
            && decides!("version-is-not-held", !survey.is_held)
    }

    fn health_needed(&self) -> Duration {
        Duration::from_millis(self.node.config.upgrade.health_ms)
    }

    fn survey(&self) -> Survey {
        let up = facts::alive_members(&self.node.raft, UP_WITHIN);
        let releases = self.node.peers.releases();
        let seen = |node: &NodeId| {
            let is_me = *node == self.node.me;
            let versions = if is_me { Some(releases.ours().clone()) } else { releases.heard_of(*node) };
            MemberVersions { node: *node, versions, is_up: is_me || up.contains(node) }
        };
        let state = self.node.replica.state.read();
        Survey {
            version: state.version().clone(),
            is_held: state.is_version_held(),
            is_settled: facts::settled_at(&self.node.raft).is_some(),
            members: facts::members(&self.node.raft).0.nodes.keys().map(seen).collect(),
        }
    }

    async fn propose<const N: usize>(&self, commands: [Command; N]) -> Result<(), ErrorCode> {
        let term = self.node.leadership.borrow().term;
        let proposals = commands.into_iter().map(of_the_cluster).collect();
        self.node.proposals.send(TermBatch { term, proposals }).await.map_err(|_| ErrorCode::OperationTimeout)
    }

    async fn wait_until_applied(&self, is_applied: impl Fn(&Replica) -> bool) -> Result<Value, ErrorCode> {
        let deadline = time::now() + APPLIED_DEADLINE;
        while !is_applied(&self.node.replica) {
            if time::now() >= deadline {
                return Err(ErrorCode::OperationTimeout);
            }
            time::sleep(POLL_EVERY).await;
        }
        Ok(self.status())
    }
}

/// One member, voter or learner.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemberVersions {
    node: NodeId,
    /// Versions that the member reported at the last contact. `None`: no contact yet.
    versions: Option<Versions>,
    /// The member acknowledges the leader's appends.
    is_up: bool,
}

/// A leader's knowledge of the members' releases.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Survey {
    version: ClusterVersion,
    /// An operator holds the version.
    is_held: bool,
    /// No membership change is in progress.
    is_settled: bool,
    members: Vec<MemberVersions>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum UpgradeState {
    /// No member supports more than the version in force.
    Done,
    /// Not every member supports a later version, for this reason.
    Waits(String),
    /// All members support this version, and are up.
    Ready(ClusterVersion),
}

impl Survey {
    fn state(&self) -> UpgradeState {
        let known = || self.members.iter().filter_map(|member| member.versions.as_ref());
        let newest = known().map(|versions| versions.most).max().unwrap_or(self.version.number);
        if decides!("version-is-newest", newest <= self.version.number) {
            // A member without contact may have been upgraded.
            let unknown = self.members.iter().find(|member| member.versions.is_none() && member.is_up);
            return unknown.map_or(UpgradeState::Done, |member| UpgradeState::Waits(not_met(member.node)));
        }
        for MemberVersions { node, versions, is_up } in &self.members {
            match versions {
                _ if !is_up => return UpgradeState::Waits(format!("node {node} does not answer")),
                None => return UpgradeState::Waits(not_met(*node)),
                Some(versions) if decides!("member-lacks-version", versions.most <= self.version.number) => {
                    return UpgradeState::Waits(format!("node {node} runs {versions}"));
                }
                Some(_) => {}
            }
        }
        if decides!("members-are-not-settled", !self.is_settled) {
            return UpgradeState::Waits("the members are being changed".to_owned());
        }
        let oldest = known().min_by_key(|versions| versions.most).expect("Invariant: a leader knows itself");
        assert!(oldest.most > self.version.number, "a version only rises");
        UpgradeState::Ready(ClusterVersion { number: oldest.most, release: oldest.release.clone() })
    }

    fn document(&self, finalize: Finalize, finalizes_in: Option<Duration>) -> Value {
        let (state, to, waits_for) = match self.state() {
            UpgradeState::Done => ("done", None, None),
            UpgradeState::Waits(why) => ("upgrading", None, Some(why)),
            UpgradeState::Ready(to) => ("ready", Some(to), None),
        };
        let shown =
            |version: &ClusterVersion| json!({ "number": version.number, "release": version.release });
        let members = self.members.iter().map(|MemberVersions { node, versions, is_up }| {
            let of = versions.as_ref();
            json!({ "node": node.0, "up": is_up, "release": of.map(|of| &of.release),
                    "versions": of.map(|of| [of.least, of.most]) })
        });
        json!({
            "version": shown(&self.version),
            "state": state,
            "to": to.as_ref().map(shown),
            "waits_for": waits_for,
            "held": self.is_held,
            "finalize": finalize.word(),
            "finalizes_in_ms": finalizes_in.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            "members": members.collect::<Vec<_>>(),
        })
    }
}

fn not_met(node: NodeId) -> String {
    format!("node {node} has not been met")
}

/// Time for which all members have been ready, as a leader has observed it.
///
/// Invariant: each leader measures this time with a monotonic clock, from its own beginning. The time begins
/// again with every interruption.
#[derive(Debug, Default)]
struct Health {
    /// Term, target version, and begin of the time.
    since: Option<(u64, u16, Instant)>,
}

impl Health {
    /// Records the present state of the cluster. Returns how long the cluster has been ready.
    fn record(&mut self, term: u64, state: &UpgradeState, now: Instant) -> Option<Duration> {
        let UpgradeState::Ready(to) = state else {
            self.since = None;
            return None;
        };
        let since = match self.since {
            Some((of, version, since)) if (of, version) == (term, to.number) => since,
            _ => now,
        };
        self.since = Some((term, to.number, since));
        Some(now.saturating_since(since))
    }

    fn since(&self, term: u64) -> Option<Instant> {
        self.since.filter(|(of, ..)| *of == term).map(|(.., since)| since)
    }
}

#[cfg(test)]
mod tests {
    use rowlock_env::time;

    use super::*;

    fn seen(node: u64, most: u16) -> MemberVersions {
        let release = if most == 1 { "0.2.0" } else { "0.3.0" };
        let versions = Versions { most, release: release.to_owned(), ..Versions::of_this_release() };
        MemberVersions { node: NodeId(node), versions: Some(versions), is_up: true }
    }

    fn survey(members: Vec<MemberVersions>) -> Survey {
        Survey { version: ClusterVersion::default(), is_held: false, is_settled: true, members }
    }

    fn waits_for(members: Vec<MemberVersions>, word: &str) {
        match survey(members).state() {
            UpgradeState::Waits(why) => assert!(why.contains(word), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_version_rises_only_with_all_members_up_and_able() {
        assert_eq!(survey(vec![seen(1, 1), seen(2, 1), seen(3, 1)]).state(), UpgradeState::Done);
        waits_for(vec![seen(1, 2), seen(2, 1), seen(3, 2)], "node 2 runs release 0.2.0");
        waits_for(
            vec![seen(1, 2), MemberVersions { is_up: false, ..seen(2, 2) }, seen(3, 2)],
            "node 2 does not",
        );
        waits_for(
            vec![seen(1, 2), MemberVersions { versions: None, ..seen(3, 2) }],
            "node 3 has not been met",
        );
        waits_for(
            vec![seen(1, 1), MemberVersions { versions: None, ..seen(3, 2) }],
            "node 3 has not been met",
        );
        let ready = ClusterVersion { number: 2, release: "0.3.0".to_owned() };
        let all = survey(vec![seen(1, 2), seen(2, 2), seen(3, 3)]);
        assert_eq!(all.state(), UpgradeState::Ready(ready.clone()), "what the oldest of them knows");
        let joint = Survey { is_settled: false, ..all.clone() };
        assert!(matches!(joint.state(), UpgradeState::Waits(_)));
        let after = Survey { version: ready, members: vec![seen(1, 2), seen(2, 2)], ..all };
        assert_eq!(after.state(), UpgradeState::Done);
    }

    #[test]
    fn one_leader_measures_health_and_interruptions_restart_it() {
        let (begun, second) = (time::now(), Duration::from_secs(1));
        let ready = survey(vec![seen(1, 2)]).state();
        let mut health = Health::default();
        assert_eq!(health.record(1, &ready, begun), Some(Duration::ZERO));
        assert_eq!(health.record(1, &ready, begun + 5 * second), Some(5 * second));
        assert_eq!(health.record(1, &UpgradeState::Waits(String::new()), begun + 6 * second), None);
        assert_eq!(health.record(1, &ready, begun + 7 * second), Some(Duration::ZERO));
        assert_eq!(health.record(2, &ready, begun + 9 * second), Some(Duration::ZERO), "another term");
        assert_eq!(health.record(2, &ready, begun + 10 * second), Some(second));
        assert_eq!((health.since(2), health.since(1)), (Some(begun + 9 * second), None));
    }
}
