//! Leader's view of the members, for the status page of a follower.
//!
//! Invariant: no request waits for the leader. While status requests arrive, the follower queries the leader
//! at most every half second; a response is valid for three seconds.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::status::Status;
use rowlock_env::duty::Duty;
use rowlock_env::task::TaskGroup;
use rowlock_env::time::{self, Instant};
use rowlock_metrics::Role;
use tokio::sync::Notify;

use crate::node::context::NodeContext;

const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(3);

/// View of one node, empty by default.
#[derive(Debug, Default)]
pub struct LeaderView {
    wanted: Notify,
    latest: Mutex<Option<(Instant, Status)>>,
}

/// Duty that queries the leader when a status request has arrived.
struct LeaderQuery {
    view: Arc<LeaderView>,
    node: Arc<NodeContext>,
}

impl Duty for LeaderQuery {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        self.view.wanted.notified().await;
        let leader = self.node.status.borrow().leader.filter(|leader| *leader != self.node.me);
        let Some(leader) = leader else { return Ok(Some(time::now())) };
        let asked = time::now();
        let answer = self.node.peers.call(leader, Lane::Control, &Request::Status, asked + PATIENCE).await;
        if let Ok(Response::Status(status)) = answer
            && status.role == Role::Leader
        {
            *self.view.latest.lock() = Some((asked, status));
        }
        Ok(Some(time::now() + PAUSE))
    }
}

impl LeaderView {
    /// Starts the duty that queries the leader on demand. A simulated world has no status page and starts no
    /// duty.
    pub fn start(tasks: &TaskGroup, node: &Arc<NodeContext>) -> Arc<LeaderView> {
        let view = Arc::new(LeaderView::default());
        if !rowlock_env::world::is_simulated() {
            tasks.spawn_duty("leader-view", LeaderQuery { view: view.clone(), node: node.clone() });
        }
        view
    }

    /// Returns the latest valid status of the leader of `term` and requests an update.
    pub(super) fn latest(&self, term: u64) -> Option<Status> {
        self.wanted.notify_one();
        let latest = self.latest.lock();
        let fresh = latest.as_ref().filter(|(at, status)| at.elapsed() < FRESH && status.term == term);
        fresh.map(|(_, status)| status.clone())
    }
}
