//! Commands for the cluster as a whole: its id, the end of a restored cluster's grace, and the text of
//! `/zookeeper/config`.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::facts;
use rowlock_env::time::{self, Instant};

use super::founding::Founding;
use super::{Due, LeaderDuty, zk_config};
use crate::node::context::NodeContext;

/// Interval at which the leader compares the state with its target.
const EVERY: Duration = Duration::from_millis(100);

/// Proposes the few commands that concern the whole cluster.
pub struct ClusterDuty {
    node: Arc<NodeContext>,
    founding: Founding,
}

impl ClusterDuty {
    pub fn new(node: Arc<NodeContext>) -> ClusterDuty {
        ClusterDuty { node, founding: Founding::default() }
    }
}

impl LeaderDuty for ClusterDuty {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        // During a change of voters the text stays as written until the new set is in force.
        let members = facts::settled_members(&self.node.raft);
        let state = self.node.replica.state.read();
        let config = members.and_then(|(members, version)| zk_config::due(&state, &members, version));
        let founding = self.founding.due(&state, term, now);
        Due { commands: founding.into_iter().chain(config).collect(), next: Some(time::about(EVERY)) }
    }
}
