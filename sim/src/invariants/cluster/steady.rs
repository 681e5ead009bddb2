//! bounded: a node answers every allowed request, however large; in a run without faults every request gets
//! an answer, and no requests of clients cost a leader its leadership.

use std::time::Duration;

use rowlock_proto::{ErrorCode, NodeId};
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::client::ClientFact;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact};

/// Time for a starting cluster to elect its leader, and for clients to find the leader.
const UP_WITHIN: Duration = Duration::from_secs(3);

pub struct Steady {
    has_faults: bool,
    has_room: bool,
    leads: Option<(NodeId, u64)>,
    /// The simulation stops the nodes from this moment on.
    is_settled: bool,
}

impl Steady {
    /// Creates the checker. `has_faults`: the run has faults. `has_room`: no disk is ever full.
    pub fn new(has_faults: bool, has_room: bool) -> Self {
        Steady { has_faults, has_room, leads: None, is_settled: false }
    }

    fn leads(&mut self, node: NodeId, term: u64, at: Nanos) -> Result<(), String> {
        let before = self.leads.replace((node, term));
        match before.filter(|_| !self.has_faults && !self.is_settled && at > Nanos(0) + UP_WITHIN) {
            Some((old, before)) if before != term => Err(format!(
                "node {node} leads term {term} at {at} behind node {old} in term {before}, and nothing has gone wrong"
            )),
            _ => Ok(()),
        }
    }
}

impl Invariant for Steady {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { node, at, what: NodeFact::Leads { term } } => self.leads(*node, *term, *at),
            Fact::Client { client, at, what: ClientFact::Asked { kind, outcome } } => match outcome {
                Ok(code) if *code == kind.refusal() => Ok(()),
                Ok(Some(ErrorCode::QuotaExceeded)) if !self.has_room => Ok(()),
                Ok(Some(code)) => Err(format!(
                    "client {} sent the largest request of {kind:?}, and was refused it with {code:?} at {at}",
                    client.0
                )),
                Ok(None) => Err(format!(
                    "client {} sent a request of {kind:?} at {at}, and no node refused the oversized request",
                    client.0
                )),
                Err(()) if self.has_faults => Ok(()),
                Err(()) => Err(format!(
                    "client {} sent the largest request of {kind:?}, and had no answer at {at}; nothing has gone wrong",
                    client.0
                )),
            },
            Fact::Settled => {
                self.is_settled = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
