//! votes-never-go-back: a node that has voted never votes for less, also not after a crash: otherwise two quorums could
//! elect two leaders for one term.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::Fact;
use crate::history::node::NodeFact;

/// The last vote of each node.
#[derive(Default)]
pub struct VotesNeverGoBack {
    votes: BTreeMap<NodeId, (u64, NodeId)>,
}

impl Invariant for VotesNeverGoBack {
    fn name(&self) -> &'static str {
        "votes-never-go-back"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        let Fact::Node { node, what: NodeFact::Voted { term, candidate }, .. } = fact else { return Ok(()) };
        let vote = (*term, *candidate);
        match self.votes.insert(*node, vote) {
            Some(last) if vote < last => Err(format!("node {node} voted for {vote:?} after {last:?}")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::judge;
    use super::super::testing::node;
    use super::*;

    #[test]
    fn a_vote_for_an_earlier_candidate_is_caught_also_over_a_restart() {
        let voted = |term, candidate| node(1, NodeFact::Voted { term, candidate: NodeId(candidate) });
        let restart = node(1, NodeFact::Started);
        assert!(judge(VotesNeverGoBack::default(), &[voted(2, 3), restart, voted(2, 1)]).is_err());
        assert_eq!(judge(VotesNeverGoBack::default(), &[voted(2, 1), voted(2, 1), voted(2, 3)]), Ok(()));
    }
}
