//! Changes of the members that nobody has asked for: a node that lost its data comes in again.
//!
//! In the flow: the folder notes who has been refused because it came with another data folder. The leader
//! takes such a node out of the members (`readmit.rs`). Then each node knows it by its new folder, and it
//! joins and asks to vote as a new one does (`bootstrap/`).
//!
//! Must never do: let anything count that a node says which has forgotten its votes and its log, while it is
//! still a voter.

mod readmit;

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::PeerPool;
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::reconfigure::Reconfigurer;
use rowlock_consensus::raft::{QuorumContact, Raft};
use rowlock_env::sync::watch;
use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_proto::NodeId;

use crate::config::AutopilotConfig;
use readmit::Underway;

/// How often a node looks.
const EVERY: Duration = Duration::from_millis(200);

/// What the task needs.
pub struct Autopilot {
    /// This node.
    pub me: NodeId,
    /// What it may do.
    pub config: AutopilotConfig,
    /// The members.
    pub raft: Raft,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Up to where the others have stored the log of this leader.
    pub quorum: QuorumContact,
    /// Changes the members while this node leads.
    pub reconfigurer: Arc<Reconfigurer>,
    /// The way to the leader, and by which folders nodes are known.
    pub peers: PeerPool,
}

impl Autopilot {
    /// Runs until `shutdown`.
    pub async fn run(self, shutdown: Shutdown) {
        let mut underway = Underway::default();
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = time::sleep_about(EVERY) => {}
            }
            if self.config.readmit_wiped {
                tokio::select! {
                    biased;
                    () = shutdown.wait() => return,
                    () = self.readmit(&mut underway) => {}
                }
            }
        }
    }
}
