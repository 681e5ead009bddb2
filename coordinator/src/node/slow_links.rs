//! Warns of nodes too far away for the timers of `[raft]`: late heartbeats and votes make elections fail or
//! leaders step down.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::config::RaftConfig;
use rowlock_env::duty::Duty;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

use crate::node::context::NodeContext;

const EVERY: Duration = Duration::from_secs(1);

pub struct SlowLinks {
    node: Arc<NodeContext>,
    logged: LoggedLinks,
}

/// Nodes with a logged warning that are still too far away.
#[derive(Default)]
struct LoggedLinks(BTreeSet<NodeId>);

impl SlowLinks {
    pub fn new(node: Arc<NodeContext>) -> SlowLinks {
        SlowLinks { node, logged: LoggedLinks::default() }
    }
}

impl Duty for SlowLinks {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        let now = self.node.config.raft.heartbeat_ms;
        for (node, round_trip) in self.logged.news(now, self.node.peers.round_trips()) {
            let [heartbeat_ms, least, greatest] = RaftConfig::fitting(round_trip);
            let round_trip_ms = round_trip.as_millis();
            rare::taken(Rare::SlowLinkTold);
            tracing::warn!(
                %node,
                round_trip_ms,
                "the node is too far away for heartbeat_ms = {now}: elections may fail. Set in [raft] of all nodes \
                 heartbeat_ms = {heartbeat_ms}, election_timeout_min_ms = {least}, election_timeout_max_ms = {greatest}"
            );
        }
        Ok(Some(time::about(EVERY)))
    }
}

impl LoggedLinks {
    /// Returns the nodes that became too far away. A node may be logged again after its round trip fell below
    /// three quarters of the heartbeat interval.
    fn news(&mut self, heartbeat_ms: u64, round_trips: Vec<(NodeId, Duration)>) -> Vec<(NodeId, Duration)> {
        let heartbeat = Duration::from_millis(heartbeat_ms);
        let is_new = |(node, trip): &(NodeId, Duration)| {
            if *trip < heartbeat * 3 / 4 {
                self.0.remove(node);
            }
            *trip >= heartbeat && self.0.insert(*node)
        };
        round_trips.into_iter().filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_node_is_logged_once_with_fitting_timers() {
        let mut links = LoggedLinks::default();
        let mut logged = |ms| links.news(40, vec![(NodeId(2), Duration::from_millis(ms))]).len();
        assert_eq!([39, 40, 200, 35, 40].map(&mut logged), [0, 1, 0, 0, 0]);
        assert_eq!([29, 41].map(&mut logged), [0, 1]);
        let far = Duration::from_millis(200);
        let [heartbeat_ms, least, greatest] = RaftConfig::fitting(far);
        assert_eq!([heartbeat_ms, least, greatest], [250, 1_000, 2_000]);
        assert!(LoggedLinks::default().news(heartbeat_ms, vec![(NodeId(2), far)]).is_empty());
    }
}
