//! Warns of nodes too far away for the timers of `[raft]`: late heartbeats and votes make elections fail or
//! leaders step down.

use std::collections::BTreeSet;
use std::time::Duration;

use rowlock_consensus::config::RaftConfig;
use rowlock_consensus::peer::PeerPool;
use rowlock_env::rare::{self, Rare};
use rowlock_env::time;
use rowlock_proto::NodeId;

const EVERY: Duration = Duration::from_secs(1);

pub struct SlowLinks {
    /// Measures the round trips to the other nodes.
    pub peers: PeerPool,
    pub raft: RaftConfig,
    /// Nodes with a logged warning that are still too far away.
    pub told: BTreeSet<NodeId>,
}

impl SlowLinks {
    pub async fn run(mut self) {
        loop {
            for (node, round_trip) in self.news(self.peers.round_trips()) {
                let [heartbeat_ms, least, greatest] = RaftConfig::fitting(round_trip);
                let (round_trip_ms, now) = (round_trip.as_millis(), self.raft.heartbeat_ms);
                rare::taken(Rare::SlowLinkTold);
                tracing::warn!(
                    %node,
                    round_trip_ms,
                    "the node is too far away for heartbeat_ms = {now}: elections may fail. Set in [raft] of all nodes \
                     heartbeat_ms = {heartbeat_ms}, election_timeout_min_ms = {least}, election_timeout_max_ms = {greatest}"
                );
            }
            time::sleep_about(EVERY).await;
        }
    }

    /// Returns the nodes that became too far away. A node may be logged again after its round trip fell below
    /// three quarters of the heartbeat interval.
    fn news(&mut self, round_trips: Vec<(NodeId, Duration)>) -> Vec<(NodeId, Duration)> {
        let heartbeat = Duration::from_millis(self.raft.heartbeat_ms);
        let is_new = |(node, trip): &(NodeId, Duration)| {
            if *trip < heartbeat * 3 / 4 {
                self.told.remove(node);
            }
            *trip >= heartbeat && self.told.insert(*node)
        };
        round_trips.into_iter().filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_told_of_once_while_it_is_too_far_away_and_the_timers_named_fit() {
        let identity = rowlock_consensus::peer::Identity { cluster: "c".to_owned(), node: NodeId(1) };
        let peers =
            PeerPool::new(identity, rowlock_env::task::TaskGroup::new(rowlock_env::task::Shutdown::new()));
        let raft = RaftConfig { heartbeat_ms: 40, ..RaftConfig::default() };
        let mut links = SlowLinks { peers, raft, told: BTreeSet::new() };
        let mut told = |ms| links.news(vec![(NodeId(2), Duration::from_millis(ms))]).len();
        assert_eq!([39, 40, 200, 35, 40].map(&mut told), [0, 1, 0, 0, 0]);
        assert_eq!([29, 41].map(&mut told), [0, 1]);
        let [heartbeat_ms, least, greatest] = RaftConfig::fitting(Duration::from_millis(200));
        assert_eq!([heartbeat_ms, least, greatest], [250, 1_000, 2_000]);
        links.raft = RaftConfig { heartbeat_ms, ..raft };
        links.told.clear();
        assert!(links.news(vec![(NodeId(2), Duration::from_millis(200))]).is_empty());
    }
}
