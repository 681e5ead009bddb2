//! `[raft]` of `cluster.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// Milliseconds between the leader's heartbeats, at least 10. For a multiple of 128 an idle node wakes
    /// least.
    pub heartbeat_ms: u64,
    /// Shortest silence in milliseconds after which a follower stands for election, at least three
    /// heartbeats. A voter that hears its leader refuses other candidates for this time.
    pub election_timeout_min_ms: u64,
    /// Longest silence in milliseconds after which a follower stands for election, above the shortest.
    pub election_timeout_max_ms: u64,
    /// Log entries between snapshots. Each node counts from another entry.
    pub snapshot_every: u64,
    /// Log entries kept behind a snapshot for followers that are slightly late.
    pub keep_logs: u64,
    /// Longest time in microseconds, up to 10,000, that a node polls its sockets for the next entry instead
    /// of sleeping, while most entries arrive that soon; 0: the node sleeps.
    pub busy_poll_us: u64,
}

impl RaftConfig {
    /// Returns `heartbeat_ms`, `election_timeout_min_ms` and `election_timeout_max_ms` that suit round trips
    /// of this length (docs/configuration.md, "Timing").
    pub fn fitting(round_trip: Duration) -> [u64; 3] {
        let trip = u64::try_from(round_trip.as_millis()).unwrap_or(u64::MAX / 16);
        let heartbeat = (trip + trip / 4).next_multiple_of(10);
        assert!(heartbeat >= trip, "an answer comes before the next heartbeat");
        let least = (3 * heartbeat).max(RaftConfig::default().election_timeout_min_ms);
        [heartbeat, least, 2 * least]
    }
}

impl Default for RaftConfig {
    /// Followers elect within half a second of the leader's death, since its connections end, and within
    /// three seconds of a silent leader's last heartbeat. A snapshot every 100,000 entries, since an entry
    /// holds many commands.
    fn default() -> Self {
        RaftConfig {
            heartbeat_ms: 128,
            election_timeout_min_ms: 1_000,
            election_timeout_max_ms: 2_000,
            snapshot_every: 100_000,
            keep_logs: 10_000,
            busy_poll_us: 1_500,
        }
    }
}
