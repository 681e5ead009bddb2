//! no-election-by-load: while nothing but load is wrong, no node votes for another leader, and no other node
//! leads.

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use super::disturbances::Disturbances;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact};

pub struct NoElectionByLoad {
    disturbances: Disturbances,
    leads: Option<(NodeId, u64)>,
    /// The simulation stops the nodes from this moment on.
    is_settled: bool,
}

impl NoElectionByLoad {
    /// Creates the checker, which ignores elections during `disturbances`.
    pub fn new(disturbances: Disturbances) -> Self {
        NoElectionByLoad { disturbances, leads: None, is_settled: false }
    }

    fn check(&self, node: NodeId, at: Nanos, (term, does): (u64, &str)) -> Result<(), String> {
        let before = self.leads.filter(|(_, before)| *before < term);
        match before.filter(|_| !self.is_settled && self.disturbances.spare(at, at)) {
            Some((leader, before)) => Err(format!(
                "node {node} {does} term {term} at {at}, while node {leader} leads term {before}, and nothing but \
                 load is wrong"
            )),
            None => Ok(()),
        }
    }
}

impl Invariant for NoElectionByLoad {
    fn name(&self) -> &'static str {
        "no-election-by-load"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { node, at, what: NodeFact::Voted { term, .. } } => {
                return self.check(*node, *at, (*term, "votes in"));
            }
            Fact::Node { node, at, what: NodeFact::Leads { term } } => {
                self.check(*node, *at, (*term, "leads"))?;
                self.leads = Some((*node, *term));
            }
            Fact::NewLife(_) => self.leads = None,
            Fact::Settled => self.is_settled = true,
            _ => {}
        }
        Ok(())
    }
}
