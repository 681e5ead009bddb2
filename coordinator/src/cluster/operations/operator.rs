//! Carries out operators' requests at this node, from its own clients and from other nodes.
//!
//! Invariant: a drained node serves no client, and hands a leadership over whenever another node can take it.
//! The drain is in memory only: a restart ends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rowlock_consensus::operation::Operation;
use rowlock_consensus::peer::{Lane, Refusal, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::decides;
use rowlock_env::time::Instant;
use rowlock_proto::acl::Id;
use rowlock_proto::{ErrorCode, NodeId, SessionId};
use serde_json::{Value, json};

use super::log_level::LogLevel;
use super::token_floor;
use crate::cluster::upgrade::Upgrades;
use crate::node::context::NodeContext;
use crate::node::end_session::{EndSession, NotExpired};

/// Time for the other nodes to report whether they serve.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);
/// Time for the end of a session, or for a higher token floor, to be committed.
const END_DEADLINE: Duration = Duration::from_secs(10);

pub struct Operator {
    pub node: Arc<NodeContext>,
    pub upgrades: Arc<Upgrades>,
    pub log_level: Arc<LogLevel>,
}

impl Operator {
    /// Carries out an operation within a few seconds. Returns a document with the result, or the code of the
    /// failure: `BadArguments` (no such voter, no valid filter), `NewConfigNoQuorum` (no other node could
    /// take over), `Unimplemented` (this program cannot), or `OperationTimeout` (the operation may still
    /// happen).
    ///
    /// # Errors
    /// [`Refusal::NotLeader`]: only the leader can carry out this operation.
    ///
    /// # Cancel safety
    /// A begun operation may continue.
    pub async fn carry_out(&self, operation: &Operation) -> Result<Result<String, ErrorCode>, Refusal> {
        let done = match operation {
            Operation::HandOver { .. } | Operation::Upgrade(_) if !self.node.leads() => {
                let leader = self.node.leadership.borrow().leader;
                return Err(Refusal::NotLeader { leader });
            }
            Operation::HandOver { to } => self.transfer_leadership(*to).await,
            Operation::Upgrade(step) => self.upgrades.carry_out(*step).await,
            Operation::Drain { on, .. } => self.drain(*on).await,
            Operation::Rebalance { percent, .. } => Ok(self.rebalance(*percent)),
            Operation::LogLevel { change, .. } => self.log_level.carry_out(change),
            Operation::EndSession { session } => self.end_session(*session).await,
            Operation::RaiseTokens { above } => {
                token_floor::raise(&self.node, *above, Instant::now() + END_DEADLINE).await
            }
        };
        Ok(done.map(|document| document.to_string()))
    }

    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<Value, ErrorCode> {
        let me = self.node.me;
        if to == Some(me) {
            return Ok(json!({ "leader": me.0 }));
        }
        if decides!(
            "successor-does-not-vote",
            to.is_some_and(|to| !facts::voters(&self.node.raft).contains(&to))
        ) {
            return Err(ErrorCode::BadArguments);
        }
        let alive = self.node.alive_voters();
        let next = to.filter(|to| alive.contains_key(to));
        let next = if to.is_some() { next } else { self.node.successor() };
        let next = next.ok_or(ErrorCode::NewConfigNoQuorum)?;
        assert!(alive.contains_key(&next) || to.is_none(), "the successor is a live voter");
        let leads = self.node.hand_over_to(next).await.ok_or(ErrorCode::OperationTimeout)?;
        Ok(json!({ "leader": leads.0 }))
    }

    async fn drain(&self, on: bool) -> Result<Value, ErrorCode> {
        if on {
            if decides!("no-other-node-serves", !self.another_serves().await) {
                return Err(ErrorCode::NewConfigNoQuorum);
            }
            if self.node.leads() {
                self.transfer_leadership(None).await?;
            }
        }
        self.node.drained.send(on);
        tracing::info!(on, "drained by an operator");
        Ok(json!({ "node": self.node.me.0, "drained": on }))
    }

    /// Returns whether another node serves the clients of this one.
    async fn another_serves(&self) -> bool {
        let members = facts::facts(&self.node.raft).members;
        let (me, deadline) = (self.node.me, Instant::now() + STATUS_DEADLINE);
        let asked = members.nodes.keys().filter(|node| **node != me).map(|node| async move {
            let answer = self.node.peers.call(*node, Lane::Control, &Request::Status, deadline).await;
            matches!(answer, Ok(Response::Status(status)) if status.serving)
        });
        join_all(asked).await.contains(&true)
    }

    fn rebalance(&self, percent: u8) -> Value {
        let (closed, of) = self.node.registry.close_share(percent);
        tracing::info!(closed, of, "closing clients' connections for an operator, so that they spread");
        json!({ "node": self.node.me.0, "closed": closed, "connections": of })
    }

    async fn end_session(&self, session: SessionId) -> Result<Value, ErrorCode> {
        let by_superuser = [Id { scheme: "super".to_owned(), id: String::new() }];
        let ending = EndSession { replica: self.node.replica.clone(), proposer: self.node.proposer.clone() };
        match ending.run(session, by_superuser.into(), Instant::now() + END_DEADLINE).await {
            Ok(()) => Ok(json!({ "session": session.to_string(), "ended": true })),
            Err(NotExpired::NoSession) => Err(ErrorCode::NoNode),
            Err(NotExpired::Unknown) => Err(ErrorCode::OperationTimeout),
        }
    }

    /// Hands leadership over again if this drained node has been elected.
    pub(super) async fn stay_drained(&self) {
        if *self.node.drained.borrow()
            && self.node.leads()
            && let Some(next) = self.node.successor()
        {
            self.node.hand_over_to(next).await;
        }
    }
}
