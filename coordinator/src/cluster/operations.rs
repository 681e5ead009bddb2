//! Operations on a running node: leadership hand-over, drain, rebalancing of clients, log level, higher
//! fencing tokens.
//!
//! In the flow: a superuser's request ([`Ask`]) goes from its connection to the one task of this node that
//! forwards it to the target node and returns the result to the connection. At the target the [`Operator`]
//! carries out the operation.
//!
//! Must never act for a client that is no superuser; connections check that before they send an [`Ask`].
//!
//! Temporary log filters for a running node, until a time or until an operator resets them.
//!
//! The node logs through `tracing` and does not own the subscriber. So the program that runs the node passes
//! a [`LogSwitch`]; a node without one refuses. The filter is in memory only: a restart ends it.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use rowlock_consensus::operation::{LogLevelChange, Operation};
use rowlock_consensus::peer::{Lane, Refusal, Request, Response};
use rowlock_consensus::raft::facts;
use rowlock_env::decides;
use rowlock_env::duty::Duty;
use rowlock_env::sync::watch;
use rowlock_env::time::{self, Instant};
use rowlock_proto::acl::Id;
use rowlock_proto::{ErrorCode, FencingToken, NodeId, SessionId};
use rowlock_state::TOKEN_FLOOR_MAX;
use rowlock_state::command::Command;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::cluster::upgrade::Upgrades;
use crate::node::admin::Ask;
use crate::node::context::NodeContext;
use crate::node::delivery::outbox::{self, Message};
use crate::node::end_session::{EndSession, NotExpired};
use crate::node::proposer::Submission;

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

/// Raises the tokens of all future queue positions above `above`. Positions that are in a queue already keep
/// their tokens; the document counts those positions.
///
/// # Errors
/// `BadArguments`: no room would be left. `OperationTimeout`: the floor may be raised, or may still be
/// raised.
///
/// # Cancel safety
/// Once polled, the floor may be raised even when the future is dropped.
async fn raise_tokens(
    node: &NodeContext,
    above: FencingToken,
    deadline: Instant,
) -> Result<Value, ErrorCode> {
    if !(0..=TOKEN_FLOOR_MAX).contains(&above.0) {
        return Err(ErrorCode::BadArguments);
    }
    let (reply_to, inbox) = outbox::channel();
    let submission = Submission::of_node(Command::RaiseTokens { above }, reply_to);
    node.proposer.submit(submission).await.map_err(|_| ErrorCode::OperationTimeout)?;
    if !time::timeout_at(deadline, inbox.is_applied()).await.unwrap_or(false) {
        return Err(ErrorCode::OperationTimeout);
    }
    let state = node.replica.state.read();
    let counts = state.counts();
    assert!(state.last_zxid().0 >= above.0, "the floor is applied here");
    tracing::info!(%above, "fencing tokens raised by an operator");
    let places = counts.lock_holders + counts.lock_waiters;
    Ok(json!({ "above": above.to_string(), "places": places }))
}

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
                raise_tokens(&self.node, *above, Instant::now() + END_DEADLINE).await
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
        let (members, _) = facts::members(&self.node.raft);
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
    async fn stay_drained(&self) {
        if *self.node.drained.borrow()
            && self.node.leads()
            && let Some(next) = self.node.successor()
        {
            self.node.hand_over_to(next).await;
        }
    }
}

/// Log filter of the program that runs a node.
pub trait LogSwitch: Send + Sync + 'static {
    /// Sets the log filter; `None` restores the program's configured filter.
    ///
    /// # Errors
    /// The reason why the filter is invalid; the previous filter stays then.
    fn set(&self, filter: Option<&str>) -> Result<(), String>;

    fn current(&self) -> String;
}

pub struct LogLevel {
    me: NodeId,
    switch: OnceLock<Arc<dyn LogSwitch>>,
    /// End of the current filter.
    until: watch::Sender<Option<Instant>>,
}

impl LogLevel {
    /// Creates the state of node `me`, which refuses until [`LogLevel::set_switch`].
    pub fn of(me: NodeId) -> Self {
        LogLevel { me, switch: OnceLock::new(), until: watch::channel(None).0 }
    }

    /// Installs the program's switch. The first call wins.
    pub fn set_switch(&self, switch: Arc<dyn LogSwitch>) {
        let _: Result<(), Arc<dyn LogSwitch>> = self.switch.set(switch);
    }

    /// Carries out the change, and returns the filter then in force.
    ///
    /// # Errors
    /// `Unimplemented`: the program has no switch. `BadArguments`: the filter is invalid.
    pub fn carry_out(&self, change: &LogLevelChange) -> Result<Value, ErrorCode> {
        let switch = self.switch.get().ok_or(ErrorCode::Unimplemented)?;
        let (filter, for_ms) = match change {
            LogLevelChange::Show => return Ok(self.document(&**switch)),
            LogLevelChange::Reset => (None, None),
            LogLevelChange::Set { filter, for_ms } => (Some(filter.as_str()), *for_ms),
        };
        let before = switch.current();
        switch.set(filter).map_err(|why| {
            tracing::warn!(%why, "an operator's log filter is invalid");
            ErrorCode::BadArguments
        })?;
        self.until.send(for_ms.map(|ms| time::now() + Duration::from_millis(ms)));
        tracing::info!(before, now = switch.current(), for_ms, "an operator has changed the log filter");
        Ok(self.document(&**switch))
    }

    fn document(&self, switch: &dyn LogSwitch) -> Value {
        let left = self.until.borrow().map(|until| until.saturating_since(time::now()));
        let ends_in_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        json!({ "node": self.me.0, "filter": switch.current(), "ends_in_ms": ends_in_ms })
    }

    /// Resets the filter, unless an operator has changed it meanwhile.
    fn end(&self, was: Option<Instant>) {
        let is_that = |until: &mut Option<Instant>| *until == was && until.take().is_some();
        if self.until.send_if_modified(is_that)
            && let Some(switch) = self.switch.get()
            && switch.set(None).is_ok()
        {
            tracing::info!(now = switch.current(), "the operator's filter of the log has ended");
        }
    }
}

/// Duty that resets each filter at its end.
pub struct FilterReset {
    log_level: Arc<LogLevel>,
    until: watch::Receiver<Option<Instant>>,
}

impl FilterReset {
    pub fn new(log_level: Arc<LogLevel>) -> FilterReset {
        FilterReset { until: log_level.until.subscribe(), log_level }
    }
}

impl Duty for FilterReset {
    type End = Infallible;

    async fn turn(&mut self) -> Result<Option<Instant>, Infallible> {
        let until = *self.until.borrow_and_update();
        let is_over = until.is_some_and(|until| time::now() >= until);
        if is_over {
            self.log_level.end(until);
        }
        Ok(until.filter(|_| !is_over))
    }

    async fn event(&mut self) -> Result<(), Infallible> {
        // `log_level` keeps the channel open.
        let _ = self.until.changed().await;
        Ok(())
    }
}
