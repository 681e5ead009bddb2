//! Membership changes without a request: readmission of wiped nodes, promotion of learners, removal of dead
//! voters.
//!
//! In the flow: the folder records nodes refused for another data folder. The leader removes such a node from
//! the members (`readmit.rs`). Then each node accepts the new folder, and the returned node joins and asks to
//! vote like a new node (`bootstrap/`). The leader also measures each member's times of answers and of
//! silence (`health.rs`), and changes the voters accordingly (`voters.rs`).
//!
//! Must never count the vote or acknowledgement of a node without memory of its votes and its log, while that
//! node is still a voter.

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

use crate::config::AutopilotConfig;
use crate::node::audit::Audit;
use readmit::Readmission;
use voters::Scan;

/// Interval of the autopilot's scans.
const EVERY: Duration = Duration::from_millis(200);

/// Dependencies of the task.
pub struct Autopilot {
    pub me: NodeId,
    /// Enabled changes and their times.
    pub config: AutopilotConfig,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    /// Log indexes stored by the other nodes under this leader.
    pub quorum: QuorumContact,
    /// Changes the members while this node leads.
    pub reconfigurer: Arc<Reconfigurer>,
    /// Connections to the others, and the incarnations of known nodes.
    pub peers: PeerPool,
    /// Records the autopilot's changes of members.
    pub audit: Audit,
    /// Counts promotions and removals.
    pub metrics: Arc<Metrics>,
}

impl Autopilot {
    /// Runs forever. A step whose future is dropped may still happen; otherwise the next leader repeats the
    /// step.
    pub async fn run(self) {
        let (mut readmission, mut scan) = (Readmission::default(), Scan::default());
        loop {
            time::sleep_about(EVERY).await;
            if self.config.readmit_wiped {
                self.readmit(&mut readmission).await;
            }
            self.scan_voters(&mut scan).await;
        }
    }
}
