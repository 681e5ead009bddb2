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
use crate::history::{Connected, Fact};

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::{client_at, node_at, set};
    use super::*;
    use crate::history::Millis;
    use crate::history::client::{Answer, Failure};
    use crate::history::node::Down;

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(ServesWhileAQuorumIsConnected::default(), facts)
    }

    /// Nodes 1 to 3 may lead and serve client 1.
    fn connected(ms: u64) -> Fact {
        let nodes = || [1, 2, 3].map(NodeId).into();
        let now = Connected { may_lead: nodes(), serving: nodes(), served: [ClientId(1)].into() };
        Fact::Connected { at: Nanos::from_millis(ms), now: Some(Arc::new(now)) }
    }

    fn changed(ms: u64) -> Fact {
        Fact::Connected { at: Nanos::from_millis(ms), now: None }
    }

    fn passed(ms: u64) -> Fact {
        Fact::Passed { at: Nanos::from_millis(ms) }
    }

    fn leads(ms: u64, node: u64, term: u64) -> Fact {
        node_at(ms, node, NodeFact::Leads { term })
    }

    #[test]
    fn a_quorum_on_slow_disks_without_a_leader_is_caught() {
        let electable = |ms| Fact::Electable {
            at: Nanos::from_millis(ms),
            may_lead: Some(Arc::new([1, 2].map(NodeId).into())),
        };
        assert_eq!(check_facts(&[electable(1_000), passed(11_000)]), Ok(()), "it still has time");
        assert!(check_facts(&[electable(1_000), passed(11_001)]).unwrap_err().contains("on slow disks"));
        assert!(check_facts(&[leads(500, 3, 1), electable(1_000), passed(11_001)]).is_err());
        assert_eq!(check_facts(&[leads(500, 2, 1), electable(1_000), passed(11_001)]), Ok(()));
        assert_eq!(
            check_facts(&[electable(1_000), electable(9_000), passed(11_001)]),
            Ok(()),
            "it has changed"
        );
    }

    #[test]
    fn a_connected_quorum_without_a_leader_is_caught() {
        assert_eq!(check_facts(&[connected(1_000), passed(6_000)]), Ok(()), "it still has time");
        assert!(check_facts(&[connected(1_000), passed(6_001)]).unwrap_err().contains("no node leads"));
        let outside = [leads(500, 4, 1), connected(1_000), passed(6_001)];
        assert!(check_facts(&outside).unwrap_err().contains("node 4 leads"));
        let ended = [leads(500, 2, 1), node_at(600, 2, NodeFact::Ended { how: Down::Killed })];
        assert!(check_facts(&[&ended[..], &[connected(1_000), passed(6_001)]].concat()).is_err());
        let late = [leads(500, 4, 1), connected(1_000), leads(3_900, 2, 2), passed(9_000)];
        assert_eq!(check_facts(&late), Ok(()));
        assert_eq!(
            check_facts(&[connected(1_000), connected(2_000), passed(6_500)]),
            Ok(()),
            "it has changed"
        );
        assert_eq!(check_facts(&[connected(1_000), changed(2_000), passed(9_000)]), Ok(()), "no quorum");
        assert_eq!(
            check_facts(&[connected(1_000), Fact::Settled, passed(9_000)]),
            Ok(()),
            "nodes are stopped"
        );
    }

    #[test]
    fn an_unanswered_call_of_a_connected_client_is_caught() {
        let leader = [leads(500, 2, 1), connected(1_000)];
        let session = |who| {
            let session = ClientFact::Session { session: SessionId(9), timeout_ms: 2_000, grace_ms: None };
            client_at(0, who, session)
        };
        let asks = |who| {
            let (call, op) = (CallId(1), Arc::new(set("/data/a", "1")));
            client_at(2_000, who, ClientFact::Invoked { call, session: SessionId(9), op })
        };
        let of = |who| [&leader[..], &[session(who), asks(who)]].concat();
        assert_eq!(check_facts(&[&of(1)[..], &[passed(13_000)]].concat()), Ok(()));
        assert!(check_facts(&[&of(1)[..], &[passed(13_001)]].concat()).unwrap_err().contains("no answer"));
        assert_eq!(check_facts(&[&of(2)[..], &[passed(13_001)]].concat()), Ok(()), "it reaches no node");
        let result: Result<Answer, Failure> = Err(Failure::Unknown);
        let answered = client_at(9_000, 1, ClientFact::Returned { call: CallId(1), result });
        assert_eq!(check_facts(&[&of(1)[..], &[answered, passed(13_001)]].concat()), Ok(()));
    }

    #[test]
    fn a_session_that_runs_out_is_caught() {
        let session = ClientFact::Session { session: SessionId(9), timeout_ms: 2_000, grace_ms: None };
        let alive = |ms, for_ms| client_at(ms, 1, ClientFact::Alive { session: SessionId(9), for_ms });
        let begin = [leads(500, 2, 1), connected(1_000), client_at(0, 1, session)];
        assert_eq!(
            check_facts(&[&begin[..], &[alive(12_000, 100)]].concat()),
            Ok(()),
            "it may have been away"
        );
        assert!(check_facts(&[&begin[..], &[alive(12_001, 199)]].concat()).unwrap_err().contains("left"));
        let lease = client_at(0, 1, ClientFact::Lease { session: SessionId(9) });
        assert_eq!(check_facts(&[&begin[..], &[lease, alive(12_001, 199)]].concat()), Ok(()));
        assert_eq!(check_facts(&[&begin[..], &[alive(12_001, 200)]].concat()), Ok(()));
        let ended = |end| Fact::SessionEnded { session: SessionId(9), end, at: Millis(0) };
        let after = |end| check_facts(&[&begin[..], &[ended(end), alive(12_001, 199)]].concat());
        assert_eq!(after(SessionEnd::Ended), Ok(()));
        assert!(after(SessionEnd::Expired).is_err());
    }

    #[test]
    fn a_node_that_does_not_serve_a_fresh_client_is_caught() {
        let probed = |began, node, outcome: Result<(), &str>| Fact::Probed {
            at: Nanos::from_millis(began + 2_000),
            began: Nanos::from_millis(began),
            node: NodeId(node),
            outcome: outcome.map_err(str::to_owned),
        };
        let begin = connected(1_000);
        assert!(check_facts(&[begin.clone(), probed(6_000, 1, Err("has no lock"))]).is_err());
        assert_eq!(check_facts(&[begin.clone(), probed(6_000, 1, Ok(()))]), Ok(()));
        assert_eq!(check_facts(&[begin.clone(), probed(5_999, 1, Err("has no lock"))]), Ok(()), "too early");
        assert_eq!(check_facts(&[begin.clone(), probed(6_000, 4, Err("has no lock"))]), Ok(()), "not of it");
        assert_eq!(check_facts(&[begin, changed(7_000), probed(6_000, 1, Err("has no lock"))]), Ok(()));
    }
}
