//! How the cluster goes over to the version of a new release: by itself when all members have been healthy
//! for a while, or when an operator says so.
//!
//! In the flow: the leader's duties ask [`Upgrades::due`] now and then; an operator's wish comes through
//! [`crate::operations`] to [`Upgrades::carry_out`] of the leader. What is decided goes through the log.
//!
//! Must never do: raise the version while a member, voter or learner, is not known to know it. It could not
//! go on.

mod survey;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::batching::TermBatch;
use rowlock_consensus::peer::PeerPool;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_types::operation::UpgradeStep;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::config::{Finalize, UpgradeConfig};
use crate::replica::Replica;
use survey::{Health, MemberVersions, Stand, Survey};

/// A member that has acknowledged nothing for so long is not up.
const UP_WITHIN: Duration = Duration::from_secs(2);
const APPLIED_DEADLINE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Dependencies of a leader's upgrade duty.
pub struct Upgrades {
    me: NodeId,
    raft: Raft,
    leadership: watch::Receiver<Leadership>,
    replica: Arc<Replica>,
    peers: PeerPool,
    config: UpgradeConfig,
    proposals: mpsc::Sender<TermBatch>,
    /// For how long all have been ready.
    health: Mutex<Health>,
}

impl Upgrades {
    /// Of node `me`, whose Raft and state these are. The `peers` know the others' releases; commands go to
    /// `proposals`.
    pub fn new(
        (me, config): (NodeId, UpgradeConfig),
        (raft, leadership): (Raft, watch::Receiver<Leadership>),
        replica: Arc<Replica>,
        peers: PeerPool,
        proposals: mpsc::Sender<TermBatch>,
    ) -> Upgrades {
        Upgrades { me, raft, leadership, replica, peers, config, proposals, health: Mutex::default() }
    }

    /// Returns the command that the leader of this term must propose by itself now.
    pub fn due(&self, term: u64, now: Instant) -> Option<Command> {
        let survey = self.survey();
        let stand = survey.stand();
        let ready_for = self.health.lock().note(term, &stand, now)?;
        match stand {
            Stand::Ready(to) if self.is_automatic(&survey) && ready_for >= self.health_needed() => {
                Some(Command::RaiseVersion { to })
            }
            _ => None,
        }
    }

    /// Does what an operator wants; gives how the upgrade stands then.
    ///
    /// # Errors
    /// Nothing was done: `NewConfigNoQuorum` (a member does not know a later version, or does not answer),
    /// `BadArguments` (there is nothing to hold). `OperationTimeout`: it may still happen.
    ///
    /// # Cancel safety
    /// What has begun goes on.
    pub async fn carry_out(&self, step: UpgradeStep) -> Result<Value, ErrorCode> {
        let stand = self.survey().stand();
        match (step, stand) {
            (UpgradeStep::Show, _) | (UpgradeStep::Finalize, Stand::Done) => Ok(self.status()),
            (UpgradeStep::Finalize, Stand::Waits(_)) => Err(ErrorCode::NewConfigNoQuorum),
            (UpgradeStep::Finalize, Stand::Ready(to)) => {
                let number = to.number;
                self.decide(Command::RaiseVersion { to }).await?;
                self.applied(|replica| replica.version() >= number).await
            }
            (UpgradeStep::Hold, Stand::Done) => Err(ErrorCode::BadArguments),
            (UpgradeStep::Hold, _) => {
                self.decide(Command::HoldVersion { hold: true }).await?;
                self.applied(|replica| replica.state.read().is_version_held()).await
            }
        }
    }

    fn status(&self) -> Value {
        let survey = self.survey();
        let since = self.health.lock().since(self.leadership.borrow().term);
        let since = since.filter(|_| self.is_automatic(&survey));
        let left = since.map(|since| self.health_needed().saturating_sub(since.elapsed()));
        survey.document(self.config.finalize, left)
    }

    fn is_automatic(&self, survey: &Survey) -> bool {
        self.config.finalize == Finalize::Auto && !survey.is_held
    }

    fn health_needed(&self) -> Duration {
        Duration::from_millis(self.config.health_ms)
    }

    fn survey(&self) -> Survey {
        let facts = facts::facts(&self.raft);
        let up = facts::alive_members(&self.raft, UP_WITHIN);
        let releases = self.peers.releases();
        let seen = |node: &NodeId| {
            let is_me = *node == self.me;
            let versions = if is_me { Some(releases.ours().clone()) } else { releases.heard_of(*node) };
            MemberVersions { node: *node, versions, is_up: is_me || up.contains(node) }
        };
        let state = self.replica.state.read();
        Survey {
            version: state.version().clone(),
            is_held: state.is_version_held(),
            is_settled: facts::settled_members(&self.raft).is_some(),
            members: facts.members.nodes.keys().map(seen).collect(),
        }
    }

    async fn decide(&self, command: Command) -> Result<(), ErrorCode> {
        let term = self.leadership.borrow().term;
        let proposals = vec![of_the_cluster(command)];
        self.proposals.send(TermBatch { term, proposals }).await.map_err(|_| ErrorCode::OperationTimeout)
    }

    async fn applied(&self, is_applied: impl Fn(&Replica) -> bool) -> Result<Value, ErrorCode> {
        let deadline = time::now() + APPLIED_DEADLINE;
        while !is_applied(&self.replica) {
            if time::now() >= deadline {
                return Err(ErrorCode::OperationTimeout);
            }
            time::sleep(LOOK_EVERY).await;
        }
        Ok(self.status())
    }
}

/// A command that no client has sent.
pub(crate) fn of_the_cluster(command: Command) -> Proposal {
    Proposal {
        origin: Origin::default(),
        session: SessionId::NONE,
        attachment: Attachment::default(),
        identities: Default::default(),
        command,
    }
}
