//! Which leaders this node has seen since its start, for the console: an operator who opens it after an
//! incident asks when the leader changed.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::TaskGroup;
use rowlock_env::time;
use rowlock_types::status::Status;
use serde::Serialize;

/// Older ones are forgotten.
const KEPT: usize = 32;

/// That a node leads, or that none with a quorum is known to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Election {
    term: u64,
    leader: Option<u64>,
    /// When this node heard of it, or last had contact to a quorum, ms since 1970.
    at_ms: i64,
}

/// Recent elections, the newest first.
#[derive(Debug, Default)]
pub struct Elections(Mutex<VecDeque<Election>>);

impl Elections {
    /// Those of a node. In a simulated world, which has no console, none are noted.
    pub fn start(tasks: &TaskGroup, status: Receiver<Status>) -> Arc<Elections> {
        let elections = Arc::new(Elections::default());
        if !rowlock_env::world::is_simulated() {
            let here = elections.clone();
            tasks.spawn_until_shutdown("elections", async move { here.follow(status).await });
        }
        elections
    }

    /// Notes what the status says, until its sender is gone.
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
            self.note(seen);
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    fn note(&self, mut seen: Election) {
        let mut all = self.0.lock();
        // The last contact may be older than the news of that leader.
        seen.at_ms = all.front().map_or(seen.at_ms, |last| last.at_ms.max(seen.at_ms));
        debug_assert!(all.front().is_none_or(|last| last.term <= seen.term), "terms do not go back");
        // Terms of elections that fail are no news.
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
    fn a_leader_and_its_loss_are_noted_once_and_old_ones_are_forgotten() {
        let elections = Elections::default();
        let note = |term, leader| elections.note(Election { term, leader, at_ms: 5 });
        for (term, leader) in
            [(0, None), (1, Some(2)), (1, Some(2)), (2, None), (3, None), (4, Some(3)), (5, Some(3))]
        {
            note(term, leader);
        }
        let seen: Vec<_> = elections.0.lock().iter().map(|one| (one.term, one.leader)).collect();
        assert_eq!(seen, [(5, Some(3)), (4, Some(3)), (2, None), (1, Some(2))]);
        elections.note(Election { term: 6, leader: None, at_ms: 4 });
        assert_eq!(elections.0.lock()[0].at_ms, 5, "a time does not go back");
        for term in 6..100 {
            note(term, Some(1));
        }
        assert_eq!(elections.list().as_array().unwrap().len(), KEPT);
        assert_eq!(elections.list()[0], serde_json::json!({ "term": 99, "leader": 1, "at_ms": 5 }));
    }
}
