//! Leaders seen by this node since its start, for the console: after an incident an operator needs the times
//! of leader changes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_consensus::status::Status;
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::TaskGroup;
use rowlock_env::time;
use serde::Serialize;

/// Bound of the list; the oldest election is dropped.
const KEPT: usize = 32;

/// Change of the leader, including its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Election {
    term: u64,
    leader: Option<u64>,
    /// Time of the report of this leader, or of the last contact with a quorum, in milliseconds since 1970.
    at_ms: i64,
}

/// Recent elections, newest first.
#[derive(Debug, Default)]
pub struct Elections(Mutex<VecDeque<Election>>);

impl Elections {
    /// Starts the recording task. A simulated world has no console and records nothing.
    pub fn start(tasks: &TaskGroup, status: Receiver<Status>) -> Arc<Elections> {
        let elections = Arc::new(Elections::default());
        if !rowlock_env::world::is_simulated() {
            let here = elections.clone();
            tasks.spawn_until_shutdown("elections", async move { here.follow(status).await });
        }
        elections
    }

    /// Records leaders from the status until its sender is dropped.
    async fn follow(&self, mut status: Receiver<Status>) {
        loop {
            let seen = {
                let now = status.borrow();
                let leader = now.leader.filter(|_| now.leaderless_since_ms.is_none()).map(|node| node.0);
                Election {
                    term: now.term,
                    leader,
                    at_ms: now.leaderless_since_ms.unwrap_or_else(time::wall_ms),
                }
            };
            self.record(seen);
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn record(&self, mut seen: Election) {
        let mut all = self.0.lock();
        // The last contact may precede the report of the previous leader.
        seen.at_ms = all.front().map_or(seen.at_ms, |last| last.at_ms.max(seen.at_ms));
        debug_assert!(all.front().is_none_or(|last| last.term <= seen.term), "terms do not go back");
        // Terms of failed elections are not recorded.
        let is_news = match all.front() {
            Some(last) => last.leader != seen.leader || seen.leader.is_some() && last.term != seen.term,
            None => seen.leader.is_some(),
        };
        if is_news {
            all.push_front(seen);
            all.truncate(KEPT);
        }
        assert!(all.len() <= KEPT, "no more than {KEPT} elections are kept");
    }

    pub(super) fn list(&self) -> serde_json::Value {
        let all: Vec<Election> = self.0.lock().iter().copied().collect();
        serde_json::json!(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_change_is_recorded_once_and_the_list_is_bounded() {
        let elections = Elections::default();
        let record = |term, leader| elections.record(Election { term, leader, at_ms: 5 });
        for (term, leader) in
            [(0, None), (1, Some(2)), (1, Some(2)), (2, None), (3, None), (4, Some(3)), (5, Some(3))]
        {
            record(term, leader);
        }
        let seen: Vec<_> = elections.0.lock().iter().map(|one| (one.term, one.leader)).collect();
        assert_eq!(seen, [(5, Some(3)), (4, Some(3)), (2, None), (1, Some(2))]);
        elections.record(Election { term: 6, leader: None, at_ms: 4 });
        assert_eq!(elections.0.lock()[0].at_ms, 5, "a time does not go back");
        for term in 6..100 {
            record(term, Some(1));
        }
        assert_eq!(elections.list().as_array().unwrap().len(), KEPT);
        assert_eq!(elections.list()[0], serde_json::json!({ "term": 99, "leader": 1, "at_ms": 5 }));
    }
}
