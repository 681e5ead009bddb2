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

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::duty::Duty;
use rowlock_env::time::{self, Instant};

use crate::node::context::NodeContext;
use readmit::Readmission;
use voters::Scan;

/// Interval of the autopilot's scans.
const EVERY: Duration = Duration::from_millis(200);

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
