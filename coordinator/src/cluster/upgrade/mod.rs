//! Upgrade of the cluster's version to a new release: automatic when all members have been healthy for a
//! while, or on an operator's request.
//!
//! In the flow: the leader's duties call the duty [`Upgrades`] at intervals; an operator's request reaches
//! [`Upgrades::carry_out`] of the leader through [`crate::cluster::operations`]. All decisions go through
//! the log.
//!
//! Must never raise the version unless every member, voter or learner, is known to support the new one: a
//! member without that support could not continue.

mod survey;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::operation::UpgradeStep;
use rowlock_consensus::raft::facts;
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_state::command::Command;
use serde_json::Value;

use survey::{Health, MemberVersions, Survey, UpgradeState};

use crate::config::Finalize;
use crate::node::context::NodeContext;
use crate::node::leader_duties::{Due, LeaderDuty};
use crate::node::proposer::of_the_cluster;
use crate::node::replica::Replica;

/// Interval at which the leader checks whether the version is due.
const EVERY: Duration = Duration::from_millis(100);
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
        Due { commands: self.raised(term, now).into_iter().collect(), next: Some(time::about(EVERY)) }
    }
}

impl Upgrades {
    pub fn new(node: Arc<NodeContext>) -> Upgrades {
        Upgrades { node, health: Mutex::default() }
    }

    /// Returns the command that the leader of this term must propose now without a request.
    fn raised(&self, term: u64, now: Instant) -> Option<Command> {
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
                self.propose(Command::RaiseVersion { to }).await?;
                self.wait_until_applied(|replica| replica.version() >= number).await
            }
            (UpgradeStep::Hold, UpgradeState::Done) => Err(ErrorCode::BadArguments),
            (UpgradeStep::Hold, _) => {
                self.propose(Command::HoldVersion { hold: true }).await?;
                self.wait_until_applied(|replica| replica.state.read().is_version_held()).await
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
        self.node.config.upgrade.finalize == Finalize::Auto && !survey.is_held
    }

    fn health_needed(&self) -> Duration {
        Duration::from_millis(self.node.config.upgrade.health_ms)
    }

    fn survey(&self) -> Survey {
        let facts = facts::facts(&self.node.raft);
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
            is_settled: facts::settled_members(&self.node.raft).is_some(),
            members: facts.members.nodes.keys().map(seen).collect(),
        }
    }

    async fn propose(&self, command: Command) -> Result<(), ErrorCode> {
        let term = self.node.leadership.borrow().term;
        let proposals = vec![of_the_cluster(command)];
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
