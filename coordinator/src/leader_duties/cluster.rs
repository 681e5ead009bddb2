//! Commands for the cluster as a whole: its id, the end of a restored cluster's grace, the text of
//! `/zookeeper/config`, and the cluster's version.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::time::{self, Instant};

use super::founding::Founding;
use super::{Due, Duty, zk_config};
use crate::replica::Replica;
use crate::upgrade::Upgrades;

/// Interval at which the leader compares the state with its target.
const EVERY: Duration = Duration::from_millis(100);

/// Proposes the few commands that concern the whole cluster.
pub struct ClusterDuty {
    raft: Raft,
    replica: Arc<Replica>,
    upgrades: Arc<Upgrades>,
    founding: Founding,
}

impl ClusterDuty {
    /// Creates the duty. `upgrades` decides when to raise the cluster's version.
    pub fn new(raft: Raft, replica: Arc<Replica>, upgrades: Arc<Upgrades>) -> ClusterDuty {
        ClusterDuty { raft, replica, upgrades, founding: Founding::default() }
    }
}

impl Duty for ClusterDuty {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        // During a change of voters the text stays as written until the new set is in force.
        let members = facts::settled_members(&self.raft);
        let state = self.replica.state.read();
        let config = members.and_then(|(members, version)| zk_config::due(&state, &members, version));
        let founding = self.founding.due(&state, term, now);
        drop(state);
        let raised = self.upgrades.due(term, now);
        let commands = founding.into_iter().chain(config).chain(raised).collect();
        Due { commands, next: Some(time::about(EVERY)) }
    }
}
