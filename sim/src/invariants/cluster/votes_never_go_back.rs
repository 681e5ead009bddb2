//! votes-never-go-back: a node never replaces its vote by a lower vote, also not after a crash: otherwise two
//! quorums could elect two leaders for one term. A vote that a node has reported is on the node's disk at its
//! next start, unless the simulation itself has removed the vote.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::Fact;
use crate::history::node::NodeFact;

/// Last vote of each node.
#[derive(Default)]
pub struct VotesNeverGoBack {
    votes: BTreeMap<NodeId, (u64, NodeId)>,
}

impl Invariant for VotesNeverGoBack {
    fn name(&self) -> &'static str {
        "votes-never-go-back"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Node { node, what: NodeFact::Voted { term, candidate }, .. } => {
                let vote = (*term, *candidate);
                match self.votes.insert(*node, vote) {
                    Some(last) if vote < last => {
                        Err(format!("node {node} voted for {vote:?} after {last:?}"))
                    }
                    _ => Ok(()),
                }
            }
            Fact::Node { node, what: NodeFact::Opened { vote, .. }, .. } => match self.votes.get(node) {
                Some(last) if *vote < Some(*last) => {
                    Err(format!("node {node} is started again with vote {vote:?}, and had told {last:?}"))
                }
                _ => Ok(()),
            },
            Fact::Node { node, what: NodeFact::Forgot, .. } => {
                self.votes.remove(node);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::node;
    use super::*;

    #[test]
    fn a_lower_vote_is_caught_also_after_a_restart() {
        let voted = |term, candidate| node(1, NodeFact::Voted { term, candidate: NodeId(candidate) });
        let restart = node(1, NodeFact::Started);
        assert!(check_history(VotesNeverGoBack::default(), &[voted(2, 3), restart, voted(2, 1)]).is_err());
        assert_eq!(
            check_history(VotesNeverGoBack::default(), &[voted(2, 1), voted(2, 1), voted(2, 3)]),
            Ok(())
        );
    }

    #[test]
    fn a_reported_vote_missing_at_the_nodes_start_is_caught() {
        let opened = |vote| node(1, NodeFact::Opened { vote, purged: None, last: None });
        let voted = || node(1, NodeFact::Voted { term: 2, candidate: NodeId(3) });
        let facts = |vote| [opened(None), voted(), opened(vote)];
        assert!(check_history(VotesNeverGoBack::default(), &facts(None)).is_err());
        assert!(check_history(VotesNeverGoBack::default(), &facts(Some((1, NodeId(3))))).is_err());
        assert_eq!(check_history(VotesNeverGoBack::default(), &facts(Some((2, NodeId(3))))), Ok(()));
        let emptied = [voted(), node(1, NodeFact::Forgot), opened(None)];
        assert_eq!(check_history(VotesNeverGoBack::default(), &emptied), Ok(()));
    }
}
