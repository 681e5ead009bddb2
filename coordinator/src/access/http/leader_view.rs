//! Leader's view of the members, for the status page of a follower.
//!
//! Invariant: no request waits for the leader. While status requests arrive, the follower queries the leader
//! at most every half second; a response is valid for three seconds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::peer::{Lane, PeerPool, Request, Response};
use rowlock_env::sync::watch::Receiver;
use rowlock_env::task::{Shutdown, TaskGroup};
use rowlock_env::time::{self, Instant};
use rowlock_types::status::{Role, Status};
use tokio::sync::Notify;

const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(3);

/// View of one node, empty by default.
#[derive(Debug, Default)]
pub struct LeaderView {
    wanted: Notify,
    latest: Mutex<Option<(Instant, Status)>>,
}

impl LeaderView {
    /// Starts the task that queries the leader named by `status` on demand. A simulated world has no status
    /// page and starts no task.
    pub fn start(tasks: &TaskGroup, peers: PeerPool, status: Receiver<Status>) -> Arc<LeaderView> {
        let view = Arc::new(LeaderView::default());
        if !rowlock_env::world::is_simulated() {
            let (here, shutdown) = (view.clone(), tasks.shutdown().clone());
            tasks.spawn("leader-view", async move { here.run(peers, status, shutdown).await });
        }
        view
    }

    async fn run(&self, peers: PeerPool, status: Receiver<Status>, shutdown: Shutdown) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.wait() => return,
                () = self.wanted.notified() => {}
            }
            let leader = {
                let now = status.borrow();
                now.leader.filter(|leader| *leader != now.node)
            };
            let Some(leader) = leader else { continue };
            let asked = time::now();
            let answer = peers.call(leader, Lane::Control, &Request::Status, asked + PATIENCE).await;
            if let Ok(Response::Status(status)) = answer
                && status.role == Role::Leader
            {
                *self.latest.lock() = Some((asked, status));
            }
            time::sleep(PAUSE).await;
        }
    }

    /// Returns the latest valid status of the leader of `term` and requests an update.
    pub(super) fn latest(&self, term: u64) -> Option<Status> {
        self.wanted.notify_one();
        let latest = self.latest.lock();
        let fresh = latest.as_ref().filter(|(at, status)| at.elapsed() < FRESH && status.term == term);
        fresh.map(|(_, status)| status.clone())
    }
}
