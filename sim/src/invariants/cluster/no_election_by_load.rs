//! no-election-by-load: while nothing but load is wrong, no node votes for another leader, and no other node
//! leads.

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use super::disturbances::Disturbances;
use crate::history::Fact;
use crate::history::node::NodeFact;

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

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::node_at;
    use super::*;

    fn check_facts(disturbed: &[(u64, u64)], facts: &[Fact]) -> Result<(), String> {
        let times = disturbed.iter().map(|(from, to)| (Nanos::from_millis(*from), Nanos::from_millis(*to)));
        check_history(NoElectionByLoad::new(Disturbances::new(times.collect())), facts)
    }

    fn voted(at: u64, node: u64, term: u64) -> Fact {
        node_at(at, node, NodeFact::Voted { term, candidate: NodeId(node) })
    }

    fn leads(at: u64, node: u64, term: u64) -> Fact {
        node_at(at, node, NodeFact::Leads { term })
    }

    #[test]
    fn an_election_by_load_alone_is_caught() {
        let beginning = [voted(400, 1, 1), voted(401, 2, 1), leads(402, 1, 1)];
        assert_eq!(check_facts(&[], &beginning), Ok(()));
        let election = [&beginning[..], &[voted(5_000, 2, 2)]].concat();
        assert!(check_facts(&[], &election).unwrap_err().contains("node 2 votes in term 2"));
        let unseen = [&beginning[..], &[leads(5_000, 2, 2)]].concat();
        assert!(check_facts(&[], &unseen).is_err());
        assert_eq!(check_facts(&[(4_000, 6_000)], &[&election[..], &[leads(5_900, 2, 2)]].concat()), Ok(()));
        assert!(check_facts(&[(4_000, 4_999)], &election).is_err());
    }

    #[test]
    fn repeated_votes_new_clusters_and_stops_are_allowed() {
        let beginning = [leads(402, 1, 3)];
        assert_eq!(check_facts(&[], &[&beginning[..], &[voted(900, 3, 3)]].concat()), Ok(()));
        let stopped = [&beginning[..], &[Fact::Settled, voted(900, 3, 4)]].concat();
        assert_eq!(check_facts(&[], &stopped), Ok(()));
    }
}
