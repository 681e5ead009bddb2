//! How a node leaves before it stops, so that the others need not find out by waiting for it: it takes
//! nothing from clients any more, answers what it has taken, finishes what it was given as the leader, and
//! hands leadership over.
//!
//! Stands before everything else of a stop. Must never do: fail, or take long; whatever goes wrong here the
//! others can deal with, as they can with a node that is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rowlock_consensus::peer::{Lane, PeerPool, Request, Response};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_consensus::raft::{Raft, facts};
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{NodeId, SessionId};
use rowlock_state::command::{Attachment, Command};

use crate::delivery::outbox;
use crate::proposer::pending::Pending;
use crate::proposer::{Proposer, Submission};

/// For the writes of this node's own clients to be answered.
const ANSWERS_DEADLINE: Duration = Duration::from_millis(500);
/// For what was given to the leader before to be committed.
const BARRIER_DEADLINE: Duration = Duration::from_secs(1);
/// For the other nodes to apply it, and so to answer their clients.
const APPLIED_DEADLINE: Duration = Duration::from_secs(1);
/// How often that is asked.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// For another node to lead.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(1);
/// A member that has acknowledged nothing for so long does not count as alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);

/// What it takes to leave.
pub(super) struct Leave {
    pub(super) me: NodeId,
    pub(super) raft: Raft,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) proposer: Proposer,
    pub(super) pending: Arc<Pending>,
    /// Heard by the status publisher, which ends serving, and by the service, which takes no more proposals:
    /// the other nodes hold theirs for the next leader.
    pub(super) leaving: watch::Sender<bool>,
    pub(super) peers: PeerPool,
}

impl Leave {
    /// Does it, within a few seconds at the worst.
    pub(super) async fn run(mut self) {
        self.leaving.send(true);
        if time::timeout(ANSWERS_DEADLINE, self.clients_are_answered()).await.is_err() {
            tracing::info!("some clients will not learn what has become of their last writes");
        }
        let view = *self.leadership.borrow();
        if view.leader != Some(self.me) || !view.ready {
            return;
        }
        let Some(next) = self.successor() else { return };
        if time::timeout(BARRIER_DEADLINE, self.barrier()).await.is_err() {
            return;
        }
        // A node that has not will tell its clients that the outcome is unknown.
        let _ = time::timeout(APPLIED_DEADLINE, self.others_have_applied()).await;
        tracing::info!(to = %next, "handing leadership over before stopping");
        facts::hand_over(&self.raft, next).await;
        let me = self.me;
        let another_leads = self.leadership.wait_for(|view| view.leader.is_some_and(|leader| leader != me));
        if time::timeout(HAND_OVER_DEADLINE, another_leads).await.is_err() {
            tracing::info!("nobody has taken over; the others will elect a leader");
        }
    }

    /// Waits until nobody waits for the log on this node. No more is taken from clients.
    async fn clients_are_answered(&self) {
        while !self.pending.is_empty() {
            time::sleep(ASK_EVERY).await;
        }
    }

    /// Waits until everything that this leader was given before is committed.
    async fn barrier(&self) {
        let (reply_to, mut answer) = outbox::channel();
        let submission = Submission {
            session: SessionId::NONE,
            attachment: Attachment::default(),
            identities: Default::default(),
            command: Command::Noop,
            reply_to,
            tag: 0,
        };
        if self.proposer.submit(submission).await.is_ok() {
            answer.ready().await;
        }
    }

    /// Waits until every other voter that is alive has applied what is in this node's log.
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

    /// The voter that is alive and has most of the log.
    fn successor(&self) -> Option<NodeId> {
        self.alive_voters().into_iter().max_by_key(|(_, stored)| *stored).map(|(node, _)| node)
    }

    /// The other voters that are alive, and how much of the log each has stored.
    fn alive_voters(&self) -> BTreeMap<NodeId, u64> {
        facts::alive_voters(&self.raft, self.me, ALIVE_WITHIN)
    }
}
