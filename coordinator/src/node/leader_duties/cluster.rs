//! Commands for the cluster as a whole: its id, the end of a restored cluster's grace, the text of
//! `/zookeeper/config`, and the cluster's version.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::time::{self, Instant};
use rowlock_state::command::Command;

use super::founding::Founding;
use super::{Due, Duty, zk_config};
use crate::node::replica::Replica;

/// Interval at which the leader compares the state with its target.
const EVERY: Duration = Duration::from_millis(100);

/// Returns the command with which the leader of a term raises the cluster's version now.
pub type RaisedVersion = Box<dyn Fn(u64, Instant) -> Option<Command> + Send>;

/// Proposes the few commands that concern the whole cluster.
pub struct ClusterDuty {
    raft: Raft,
    replica: Arc<Replica>,
    raised: RaisedVersion,
    founding: Founding,
}

impl ClusterDuty {
    /// Creates the duty. `raised` decides when to raise the cluster's version.
    pub fn new(raft: Raft, replica: Arc<Replica>, raised: RaisedVersion) -> ClusterDuty {
        ClusterDuty { raft, replica, raised, founding: Founding::default() }
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
        let raised = (self.raised)(term, now);
        let commands = founding.into_iter().chain(config).chain(raised).collect();
        Due { commands, next: Some(time::about(EVERY)) }
    }
}
