//! What operators have a node do while it runs: hand leadership over, drain a node, spread the clients,
//! log more, raise the fencing tokens.
//!
//! In the flow: a superuser's request ([`Ask`]) comes from its connection to the one task of this node that
//! passes it on to the node that it is meant for, and tells the connection what has come of
//! it. At that node the [`Operator`] does it.
//!
//! Must never do: anything for a client that is no superuser; connections check that before they ask.

pub mod end_session;
pub mod hand_over;
pub mod log_level;
mod operator;
mod token_floor;

use std::sync::Arc;
use std::time::Duration;

use rowlock_consensus::peer::{Lane, PeerPool, Refusal, Request, Response};
use rowlock_consensus::raft::leadership::Leadership;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ErrorCode, NodeId};
use rowlock_types::operation::Operation;
use tokio::sync::mpsc;

use crate::delivery::outbox::{Message, Outbox};
pub use operator::Operator;

/// An operation that takes longer may still happen, and its operator is told so.
const DEADLINE: Duration = Duration::from_secs(15);
/// The same for what is done at once. The caller hears nothing else meanwhile, not even that the connection
/// lives: a client would give it up, and ask the next node.
const DEADLINE_AT_ONCE: Duration = Duration::from_secs(3);
/// Pause before a leader is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// How often a drained node looks whether it leads.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub struct Ask {
    pub operation: Operation,
    pub reply_to: Outbox,
    /// Given back with it.
    pub tag: u64,
}

/// The task of this node that passes operations on, one after the other.
pub struct Operations {
    pub me: NodeId,
    pub queue: mpsc::Receiver<Ask>,
    pub leadership: watch::Receiver<Leadership>,
    pub here: Arc<Operator>,
    /// The way to the others.
    pub peers: PeerPool,
}

impl Operations {
    /// Runs until the queue closes.
    pub async fn run(mut self) {
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            if Instant::now() >= look_at {
                self.here.stay_drained().await;
                look_at = Instant::now() + LOOK_EVERY;
            }
            let ask = match time::timeout_at(look_at, self.queue.recv()).await {
                Ok(Some(ask)) => ask,
                Ok(None) => return,
                Err(_) => continue,
            };
            let deadline = match &ask.operation {
                Operation::Rebalance { .. } | Operation::LogLevel { .. } => DEADLINE_AT_ONCE,
                _ => DEADLINE,
            };
            let done = time::timeout(deadline, self.pass_on(&ask.operation)).await;
            let result = done.unwrap_or(Err(ErrorCode::OperationTimeout));
            ask.reply_to.push(Message::Reported { tag: ask.tag, result });
        }
    }

    async fn pass_on(&self, operation: &Operation) -> Result<String, ErrorCode> {
        loop {
            let leader = self.leadership.borrow().leader;
            let answer = match operation.executor(self.me, leader) {
                None => None,
                Some(node) if node == self.me => self.here.carry_out(operation).await.ok(),
                Some(node) if self.peers.peer(node).is_none() => return Err(ErrorCode::NoNode),
                Some(node) => self.ask(node, operation).await?,
            };
            match answer {
                Some(answer) => return answer,
                None => time::sleep(AGAIN).await,
            }
        }
    }

    /// `None`: it has not been done, and may be asked for again.
    async fn ask(
        &self,
        node: NodeId,
        operation: &Operation,
    ) -> Result<Option<Result<String, ErrorCode>>, ErrorCode> {
        assert!(node != self.me, "what is for this node is done here");
        let request = Request::Operate(operation.clone());
        match self.peers.call(node, Lane::Control, &request, Instant::now() + DEADLINE).await {
            Ok(Response::Operated(result)) => Ok(Some(result)),
            Ok(Response::Refused(Refusal::NotLeader { .. })) => Ok(None),
            Err(error) if !error.may_have_happened() => Ok(None),
            Ok(_) | Err(_) => Err(ErrorCode::OperationTimeout),
        }
    }
}
