//! The cluster's id, the end of a restored cluster's grace, the text in `/zookeeper/config`, and the
//! cluster's version.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::time::{self, Instant};

use super::founding::Founding;
use super::{Due, Duty, zk_config};
use crate::replica::Replica;
use crate::upgrade::Upgrades;

/// How often the leader compares the state with what it should be.
const EVERY: Duration = Duration::from_millis(100);

/// Proposes the few commands about the cluster as a whole.
pub struct ClusterDuty {
    raft: Raft,
    replica: Arc<Replica>,
    upgrades: Arc<Upgrades>,
    founding: Founding,
}

impl ClusterDuty {
    /// `upgrades` says when the version is raised.
    pub fn new(raft: Raft, replica: Arc<Replica>, upgrades: Arc<Upgrades>) -> ClusterDuty {
        ClusterDuty { raft, replica, upgrades, founding: Founding::default() }
    }
}

impl Duty for ClusterDuty {
    fn due(&mut self, term: u64, now: Instant) -> Due {
        // On the way from one set of voters to another: what is written stands until the new set is in force.
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
