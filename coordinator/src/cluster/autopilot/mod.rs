//! Changes of the members without a request: a node that lost its data comes in again, a learner
//! becomes a voter, a dead voter is removed.
//!
//! In the flow: the folder notes who has been refused because it came with another data folder. The leader
//! takes such a node out of the members (`readmit.rs`). Then each node knows it by its new folder, and it
//! joins and asks to vote as a new one does (`bootstrap/`). The leader also notes for how long each member
//! has answered or been silent (`health.rs`), and changes the voters accordingly (`voters.rs`).
//!
//! Must never do: let anything count that a node says which has forgotten its votes and its log, while it is
//! still a voter.

mod health;
mod readmit;
mod voters;

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::PeerPool;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_consensus::raft::{QuorumContact, Raft};
use rowlock_env::sync::watch;
use rowlock_env::time;
use rowlock_proto::NodeId;
use rowlock_types::metrics::Metrics;

use crate::audit::Audit;
use crate::config::AutopilotConfig;
use readmit::Readmission;
use voters::Looks;

/// How often a node looks.
const EVERY: Duration = Duration::from_millis(200);

/// Dependencies of the task.
pub struct Autopilot {
    pub me: NodeId,
    /// Changes that it may make.
    pub config: AutopilotConfig,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Up to where the others have stored the log of this leader.
    pub quorum: QuorumContact,
    /// Changes the members while this node leads.
    pub reconfigurer: Arc<Reconfigurer>,
    /// The way to the leader, and by which folders nodes are known.
    pub peers: PeerPool,
    /// Where it is recorded who has changed the members.
    pub audit: Audit,
    /// How many steps were taken.
    pub metrics: Arc<Metrics>,
}

impl Autopilot {
    /// Runs without end. A step that is dropped goes on, or is taken again by the next leader.
    pub async fn run(self) {
        let (mut readmission, mut looks) = (Readmission::default(), Looks::default());
        loop {
            time::sleep_about(EVERY).await;
            if self.config.readmit_wiped {
                self.readmit(&mut readmission).await;
            }
            self.see_to_voters(&mut looks).await;
        }
    }
}
