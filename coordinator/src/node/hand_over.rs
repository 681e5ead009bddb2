//! Hand-over of the leadership: first the other voters commit and apply all earlier proposals, so that their
//! clients get replies; then the leader asks its successor to lead.
//!
//! Must never take long. The other nodes handle a failure here like the crash of a leader.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use rowlock_consensus::peer::{Lane, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;
use rowlock_state::command::Command;

use crate::node::context::NodeContext;
use crate::node::delivery::outbox;
use crate::node::proposer::Submission;

/// Time for a write to be committed and to reach the next leader's disk. Long enough for a disk with flushes
/// of one second.
const COMMIT_DEADLINE: Duration = Duration::from_secs(4);
/// Time for the other nodes to apply the committed entries, and so to answer their clients.
const APPLIED_DEADLINE: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Time for another node to become leader.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(6);
/// A member without an acknowledgement within this time does not count as alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);

impl NodeContext {
    /// Returns the voter that is alive and has stored most of the log.
    pub fn successor(&self) -> Option<NodeId> {
        self.alive_voters().into_iter().max_by_key(|(_, stored)| *stored).map(|(node, _)| node)
    }

    /// Returns the other voters that are alive, with their stored log indexes.
    pub fn alive_voters(&self) -> BTreeMap<NodeId, u64> {
        facts::alive_voters(&self.raft, self.me, ALIVE_WITHIN)
    }

    /// Hands the leadership to `next`, within fifteen seconds at most. Returns the new leader, if it is
    /// another node. Does nothing unless a write commits here and reaches the disk of `next`: a node that
    /// answers heartbeats may have a disk that hangs, and such a node wins no election.
    pub async fn hand_over_to(&self, next: NodeId) -> Option<NodeId> {
        assert!(next != self.me, "a node does not hand over to itself");
        if decides!(
            "hand-over-is-not-committed",
            time::timeout(COMMIT_DEADLINE, self.commits_reach(next)).await != Ok(true)
        ) {
            tracing::warn!(to = %next, "does not hand leadership over: no write is committed and on the disk of that node");
            return None;
        }
        // A node that has not applied them reports an unknown outcome to its clients.
        let _ = time::timeout(APPLIED_DEADLINE, self.others_have_applied()).await;
        tracing::info!(to = %next, "handing leadership over");
        facts::hand_over(&self.raft, next).await;
        let (me, mut leadership) = (self.me, self.leadership.clone());
        let another_leads = leadership.wait_for(|view| view.leader.is_some_and(|leader| leader != me));
        match time::timeout(HAND_OVER_DEADLINE, another_leads).await {
            Ok(Ok(())) => self.leadership.borrow().leader.filter(|leader| *leader != me),
            Ok(Err(_)) | Err(_) => {
                tracing::info!("no other node has taken over");
                None
            }
        }
    }

    /// Waits until all earlier proposals of this leader are committed and on the disk of `next`.
    async fn commits_reach(&self, next: NodeId) -> bool {
        let (reply_to, answer) = outbox::channel();
        let noop = Submission::of_node(Command::Noop, reply_to);
        if self.proposer.submit(noop).await.is_err() || !answer.is_applied().await {
            return false;
        }
        let index = facts::applied_index(&self.raft);
        while self
            .alive_voters()
            .get(&next)
            .is_none_or(|stored| decides!("successor-lacks-entries", *stored < index))
        {
            time::sleep(ASK_EVERY).await;
        }
        true
    }

    /// Waits until every other live voter has applied this node's log.
    async fn others_have_applied(&self) {
        let index = facts::facts(&self.raft).last_index.unwrap_or(0);
        let others = self.alive_voters();
        let each = others.keys().map(|node| self.has_applied(*node, index));
        join_all(each).await;
    }

    async fn has_applied(&self, node: NodeId, index: u64) {
        loop {
            let deadline = Instant::now() + APPLIED_DEADLINE;
            let status = self.peers.call(node, Lane::Control, &Request::Status, deadline).await;
            if matches!(status, Ok(Response::Status(status)) if status.applied_index >= index) {
                return;
            }
            time::sleep(ASK_EVERY).await;
        }
    }
}
