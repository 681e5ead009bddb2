//! votes-never-go-back: a node never replaces its vote by a lower vote, also not after a crash: otherwise two
//! quorums could elect two leaders for one term. A vote that a node has reported is on the node's disk at its
//! next start, unless the simulation itself has removed the vote.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Book, Fact};

/// Last vote of each node.
#[derive(Default)]
pub struct VotesNeverGoBack {
    votes: BTreeMap<NodeId, (u64, NodeId)>,
}

impl Invariant for VotesNeverGoBack {
    fn name(&self) -> &'static str {
        "votes-never-go-back"
    }

    fn observe(&mut self, fact: &Fact, _: &Book) -> Result<(), String> {
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
