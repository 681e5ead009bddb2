//! Handles reconfig: clients of ZooKeeper's protocol change the membership.
//!
//! In the flow: a superuser's request ([`Ask`]) goes from the connection to this node's reconfig task. The
//! task calls the leader, waits until `/zookeeper/config` shows the change here, and notifies the connection.
//! The reply has the content of that znode. The leader's part is `raft::reconfigure`.
//!
//! Must never let a client without superuser rights change the membership.

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::{Lane, Refusal, Request, Response};
use rowlock_consensus::reconfiguration::Wanted;
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::ErrorCode;
use tokio::sync::mpsc;

use crate::node::admin::Ask;
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::Message;
use crate::node::zk::config_version;

/// Time limit of a reconfiguration. Afterwards its client gets an unknown outcome.
const DEADLINE: Duration = Duration::from_secs(40);
/// Interval of the checks for a change that an earlier leader left unfinished.
const FINISH_EVERY: Duration = Duration::from_secs(1);
/// Pause before the next call to a leader.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Interval of the checks whether the change shows here.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Task that forwards this node's reconfigurations to the leader, sequentially.
pub struct Reconfig {
    pub node: Arc<NodeContext>,
    pub queue: mpsc::Receiver<Ask<Wanted>>,
}

impl Reconfig {
    /// Runs until the queue closes.
    pub async fn run(mut self) {
        let mut next_check = Instant::now() + FINISH_EVERY;
        loop {
            // The check precedes the queue: a client that sends requests without a pause must not block the
            // end of a change.
            if Instant::now() >= next_check {
                self.node.reconfigurer.finish_interrupted().await;
                next_check = Instant::now() + FINISH_EVERY;
            }
            let ask = match time::timeout_at(next_check, self.queue.recv()).await {
                Ok(Some(ask)) => ask,
                Ok(None) => return,
                Err(_) => continue,
            };
            if decides!("reconfig-has-no-reader", ask.reply_to.is_closed()) {
                continue;
            }
            let message = match time::timeout(DEADLINE, self.carry_out(&ask.wanted)).await {
                Ok(Some(result)) => Message::Reconfigured { tag: ask.tag, result },
                Ok(None) | Err(_) => Message::Lost,
            };
            ask.reply_to.push(message);
        }
    }

    /// Returns `None` if the outcome is unknown.
    async fn carry_out(&self, wanted: &Wanted) -> Option<Result<(), ErrorCode>> {
        let index = loop {
            match self.call_leader(wanted).await {
                Asked::Done(Ok(index)) => break index,
                Asked::Done(Err(code)) => return Some(Err(code)),
                Asked::Again => time::sleep(RETRY_PAUSE).await,
                Asked::Unknown => return None,
            }
        };
        while config_version(&self.node.replica.state.read()).is_none_or(|version| version < index) {
            time::sleep(POLL_EVERY).await;
        }
        Some(Ok(()))
    }

    async fn call_leader(&self, wanted: &Wanted) -> Asked {
        let Some(leader) = self.node.leadership.borrow().leader else { return Asked::Again };
        let answer = if leader == self.node.me {
            self.node.reconfigurer.reconfigure(wanted).await
        } else {
            let request = Request::Reconfigure(wanted.clone());
            match self.node.peers.call(leader, Lane::Control, &request, Instant::now() + DEADLINE).await {
                Ok(Response::Reconfigured(result)) => Ok(result),
                Ok(Response::Refused(refusal)) => Err(refusal),
                Err(error) if decides!("reconfig-may-be-repeated", !error.may_have_happened()) => {
                    return Asked::Again;
                }
                Ok(_) | Err(_) => return Asked::Unknown,
            }
        };
        match answer {
            Ok(result) => Asked::Done(result),
            Err(Refusal::NotLeader { .. } | Refusal::Overloaded | Refusal::NotServing) => Asked::Again,
            Err(Refusal::NoQuorum | Refusal::Invalid(_)) => Asked::Unknown,
        }
    }
}

enum Asked {
    Done(Result<u64, ErrorCode>),
    Again,
    Unknown,
}
