//! Operations on a running node: leadership hand-over, drain, rebalancing of clients, log level, higher
//! fencing tokens.
//!
//! In the flow: a superuser's request ([`Ask`]) goes from its connection to the one task of this node that
//! forwards it to the target node and returns the result to the connection. At the target the [`Operator`]
//! carries out the operation.
//!
//! Must never act for a client that is no superuser; connections check that before they send an [`Ask`].

pub mod log_level;
mod operator;
mod token_floor;

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::{Lane, Refusal, Request, Response};
use rowlock_env::decides;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use tokio::sync::mpsc;

use crate::node::admin::Ask;
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::Message;
pub use operator::Operator;

/// Time limit of an operation. A later operation may still happen, and the operator's reply says that.
const DEADLINE: Duration = Duration::from_secs(15);
/// Time limit of operations that take effect at once. The caller receives nothing meanwhile, not even a
/// keepalive: a client would close the connection, and ask the next node.
const DEADLINE_AT_ONCE: Duration = Duration::from_secs(3);
/// Pause before the next attempt to reach a leader.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which a drained node checks whether it leads.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Task that forwards this node's operations, sequentially.
pub struct Operations {
    pub node: Arc<NodeContext>,
    pub queue: mpsc::Receiver<Ask<Operation>>,
    pub here: Arc<Operator>,
}

impl Operations {
    /// Runs until the queue closes.
    pub async fn run(mut self) {
        let mut next_check = Instant::now() + CHECK_EVERY;
        loop {
            if Instant::now() >= next_check {
                self.here.stay_drained().await;
                next_check = Instant::now() + CHECK_EVERY;
            }
            let ask = match time::timeout_at(next_check, self.queue.recv()).await {
                Ok(Some(ask)) => ask,
                Ok(None) => return,
                Err(_) => continue,
            };
            let deadline = match &ask.wanted {
                Operation::Rebalance { .. } | Operation::LogLevel { .. } => DEADLINE_AT_ONCE,
                _ => DEADLINE,
            };
            let done = time::timeout(deadline, self.pass_on(&ask.wanted)).await;
            let result = done.unwrap_or(Err(ErrorCode::OperationTimeout));
            ask.reply_to.push(Message::Reported { tag: ask.tag, result });
        }
    }

    async fn pass_on(&self, operation: &Operation) -> Result<String, ErrorCode> {
        loop {
            let leader = self.node.leadership.borrow().leader;
            let answer = match operation.executor(self.node.me, leader) {
                None => None,
                Some(node) if node == self.node.me => self.here.carry_out(operation).await.ok(),
                Some(node) if self.node.peers.peer(node).is_none() => return Err(ErrorCode::NoNode),
                Some(node) => self.call_node(node, operation).await?,
            };
            match answer {
                Some(answer) => return answer,
                None => time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Calls `node`. Returns `None` if the operation did not happen and may be retried.
    async fn call_node(
        &self,
        node: NodeId,
        operation: &Operation,
    ) -> Result<Option<Result<String, ErrorCode>>, ErrorCode> {
        assert!(node != self.node.me, "this node carries out its own operations");
        let request = Request::Operate(operation.clone());
        match self.node.peers.call(node, Lane::Control, &request, Instant::now() + DEADLINE).await {
            Ok(Response::Operated(result)) => Ok(Some(result)),
            Ok(Response::Refused(Refusal::NotLeader { .. })) => Ok(None),
            Err(error) if decides!("operation-may-be-repeated", !error.may_have_happened()) => Ok(None),
            Ok(_) | Err(_) => Err(ErrorCode::OperationTimeout),
        }
    }
}
