//! The cluster's id, the end of a restored cluster's grace, the text in `/zookeeper/config`, and the
//! cluster's version.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::time::{self, Instant};
use rowlock_state::command::Command;

use super::founding::Founding;
use super::{Due, Duty, zk_config};
use crate::replica::Replica;

/// How often the leader compares the state with what it should be.
const EVERY: Duration = Duration::from_millis(100);

/// Returns the command with which the leader of a term raises the cluster's version now.
pub type RaisedVersion = Box<dyn Fn(u64, Instant) -> Option<Command> + Send>;

/// Proposes the few commands about the cluster as a whole.
pub struct ClusterDuty {
    raft: Raft,
    replica: Arc<Replica>,
    raised: RaisedVersion,
    founding: Founding,
}

impl ClusterDuty {
    /// `raised` says when the version is raised.
    pub fn new(raft: Raft, replica: Arc<Replica>, raised: RaisedVersion) -> ClusterDuty {
        ClusterDuty { raft, replica, raised, founding: Founding::default() }
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
        let raised = (self.raised)(term, now);
        let commands = founding.into_iter().chain(config).chain(raised).collect();
        Due { commands, next: Some(time::about(EVERY)) }
    }
}
