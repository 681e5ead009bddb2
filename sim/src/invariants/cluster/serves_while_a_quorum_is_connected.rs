//! serves-while-a-quorum-is-connected: while the connections do not change, and some quorum of the voters is
//! fully connected, a leader exists among the nodes that reach a quorum, each node in contact with all of
//! these nodes serves a fresh client's session, write and lock, and clients of these nodes get answers and
//! keep their sessions.
//!
//! The simulated world reports the connections ([`Fact::Connected`]), so a cluster's own
//! misjudgment of the state is no excuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::{NodeId, SessionId};
use rowlock_state::outcome::SessionEnd;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::client::{CallId, ClientFact, ClientId, Op};
use crate::history::node::NodeFact;
use crate::history::{Book, Connected, Fact};

/// Bound for a connected quorum to have a serving leader, at default timers: a bridge that still hears an old
/// leader hears the old leader for two least timeouts.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);
/// Bound for a connected quorum to have a leader while each flush takes up to a second.
const ON_SLOW_DISKS: Duration = Duration::from_secs(10);
/// Time beyond the session timeout for a call's answer. A client whose node vanished needs its session's
/// timeout to find another node. A node with a hanging disk disconnects its clients after five seconds.
const CALL: Duration = Duration::from_secs(4);
/// Least part of its timeout that a served session has left, as a divisor: a client with answers renews three
/// times as early.
const LEFT: u32 = 10;

struct Open {
    client: ClientId,
    session: SessionId,
    since: Nanos,
    op: Arc<Op>,
}

/// Service that the cluster owes, and activity of clients and nodes.
#[derive(Default)]
pub struct ServesWhileAQuorumIsConnected {
    now: Nanos,
    /// Start of the owed service.
    owed: Option<(Nanos, Arc<Connected>)>,
    /// Nodes of which one must lead, however slow the disks are, and the start of this duty.
    electable: Option<(Nanos, Arc<BTreeSet<NodeId>>)>,
    /// Leader of the highest term.
    leader: Option<(u64, NodeId)>,
    timeouts: BTreeMap<SessionId, Duration>,
    open: BTreeMap<CallId, Open>,
    is_settled: bool,
}

impl ServesWhileAQuorumIsConnected {
    /// Returns the service owed for longer than `long`, with its start.
    fn owed_for(&self, long: Duration) -> Option<(Nanos, &Connected)> {
        let (since, owed) = self.owed.as_ref()?;
        (!self.is_settled && self.now > *since + long).then_some((*since, &**owed))
    }

    fn leads(&self) -> Result<(), String> {
        let Some((since, owed)) = self.owed_for(WITHIN) else { return Ok(()) };
        let leader = self.leader.map(|(_, node)| node);
        if leader.is_some_and(|leader| owed.may_lead.contains(&leader)) {
            return Ok(());
        }
        let who = leader.map_or("no node".to_owned(), |leader| format!("node {leader}"));
        Err(format!(
            "{who} leads at {}, although {:?} reach a quorum each, and nothing has changed since {since}",
            self.now, owed.may_lead
        ))
    }

    fn elects(&self) -> Result<(), String> {
        let Some((since, may_lead)) = &self.electable else { return Ok(()) };
        let leads = self.leader.is_some_and(|(_, leader)| may_lead.contains(&leader));
        if self.is_settled || leads || self.now <= *since + ON_SLOW_DISKS {
            return Ok(());
        }
        Err(format!("none of {may_lead:?} leads at {}, on slow disks, since {since}", self.now))
    }

    fn answers(&self) -> Result<(), String> {
        let Some((since, owed)) = self.owed_for(WITHIN) else { return Ok(()) };
        let is_late = |open: &&Open| {
            let timeout = self.timeouts.get(&open.session).copied();
            let bound = timeout.map(|timeout| WITHIN + timeout + CALL);
            let waits_for_a_lock = matches!(*open.op, Op::Acquire { .. });
            let is_late = bound.is_some_and(|bound| self.now > open.since.max(since) + bound);
            is_late && !waits_for_a_lock && owed.served.contains(&open.client)
        };
        match self.open.values().find(is_late) {
            Some(open) => Err(format!(
                "{:?} of client {} since {} has no answer at {}, and a quorum is connected since {since}",
                open.op, open.client.0, open.since, self.now
            )),
            None => Ok(()),
        }
    }

    fn client(&mut self, client: ClientId, what: &ClientFact) -> Result<(), String> {
        match what {
            ClientFact::Session { session, timeout_ms, .. } => {
                self.timeouts.insert(*session, Duration::from_millis(u64::from(*timeout_ms)));
            }
            // A lease's client tries all nodes in turn, also unreachable ones, and may be silent.
            ClientFact::Lease { session } => {
                self.timeouts.remove(session);
            }
            ClientFact::Alive { session, for_ms } => return self.lives(client, *session, *for_ms),
            ClientFact::Invoked { call, session, op } => {
                let (session, since, op) = (*session, self.now, op.clone());
                self.open.insert(*call, Open { client, session, since, op });
            }
            ClientFact::Returned { call, .. } => {
                self.open.remove(call);
            }
            ClientFact::Ended => self.open.retain(|_, open| open.client != client),
            _ => {}
        }
        Ok(())
    }

    fn lives(&self, client: ClientId, session: SessionId, for_ms: u32) -> Result<(), String> {
        let Some(timeout) = self.timeouts.get(&session).copied() else { return Ok(()) };
        let Some((since, owed)) = self.owed_for(WITHIN + timeout + CALL) else { return Ok(()) };
        let left = Duration::from_millis(u64::from(for_ms));
        if !owed.served.contains(&client) || left >= timeout / LEFT {
            return Ok(());
        }
        Err(format!(
            "session {session} of client {} has {left:?} of {timeout:?} left at {}, and a quorum is connected since {since}",
            client.0, self.now
        ))
    }

    fn probed(&self, began: Nanos, node: NodeId, outcome: &Result<(), String>) -> Result<(), String> {
        let (Some((since, owed)), Err(why)) = (&self.owed, outcome) else { return Ok(()) };
        if self.is_settled || began < *since + WITHIN || !owed.serving.contains(&node) {
            return Ok(());
        }
        Err(format!(
            "a client of node {node} since {began} {why} at {}, and a quorum is connected since {since}",
            self.now
        ))
    }
}

impl Invariant for ServesWhileAQuorumIsConnected {
    fn name(&self) -> &'static str {
        "serves-while-a-quorum-is-connected"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        self.now = fact.true_time().unwrap_or(self.now);
        match fact {
            Fact::Connected { at, now } => self.owed = now.clone().map(|now| (*at, now)),
            Fact::Electable { at, may_lead } => {
                self.electable = may_lead.clone().map(|may_lead| (*at, may_lead));
            }
            Fact::Probed { began, node, outcome, .. } => return self.probed(*began, *node, outcome),
            Fact::Node { node, what: NodeFact::Leads { term }, .. } => {
                self.leader = self.leader.max(Some((*term, *node)));
            }
            Fact::Node { node, what: NodeFact::Ended { .. }, .. } => {
                self.leader = self.leader.filter(|(_, leader)| leader != node);
            }
            Fact::Client { client, what, .. } => return self.client(*client, what),
            Fact::Passed { .. } => {
                self.leads()?;
                self.elects()?;
                return self.answers();
            }
            Fact::Settled => self.is_settled = true,
            // An operator ended the session: nothing keeps the session alive any more.
            Fact::SessionEnded { session, end: SessionEnd::Ended, .. } => {
                self.timeouts.remove(session);
            }
            _ => {}
        }
        Ok(())
    }
}
