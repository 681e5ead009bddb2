//! deposed-leader-admits-none: a node takes a membership into its log only from the leader that the node has
//! voted for last. So no node becomes a voter or a learner by an entry of a leader that a later term has
//! deposed.

use std::collections::{BTreeMap, BTreeSet};

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::{NodeFact, Position};
use crate::history::{Book, Fact};

#[derive(Default)]
pub struct DeposedLeaderAdmitsNone {
    votes: BTreeMap<NodeId, (u64, NodeId)>,
    /// Last entry on the disk of each starting node, which reports its old entries.
    opening: BTreeMap<NodeId, Position>,
    /// Nodes whose logs may lack entries that the nodes have sent.
    forgot: BTreeSet<NodeId>,
}

impl DeposedLeaderAdmitsNone {
    fn appended(&self, node: NodeId, entry: Position, book: &Book) -> Result<(), String> {
        let (Some((term, leader)), Some(members)) = (self.votes.get(&node), book.members(entry)) else {
            return Ok(());
        };
        // A message of that leader may come after a later leader has truncated its log (seed 1,066).
        let is_first = entry.index.0 == 0 && entry.leader == *leader;
        let is_own = (entry.term, entry.leader) == (*term, *leader) || is_first;
        let is_known = || book.log(*leader).has(entry) || self.forgot.contains(leader);
        if is_own || *leader != node && is_known() {
            return Ok(());
        }
        Err(format!(
            "node {node} takes the voters {:?} and learners {:?} from {entry:?}, and has voted for node {leader} in term {term}, whose log has not that entry",
            members.voters, members.learners
        ))
    }
}

impl Invariant for DeposedLeaderAdmitsNone {
    fn name(&self) -> &'static str {
        "deposed-leader-admits-none"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        match what {
            NodeFact::Opened { vote, last, .. } => {
                self.votes.remove(node);
                self.votes.extend(vote.map(|vote| (*node, vote)));
                self.opening.remove(node);
                self.opening.extend(last.map(|last| (*node, last)));
            }
            NodeFact::Voted { term, candidate } => drop(self.votes.insert(*node, (*term, *candidate))),
            NodeFact::Forgot => drop(self.forgot.insert(*node)),
            NodeFact::Appended { entry, .. } => match self.opening.get(node) {
                Some(last) if last.index >= entry.index => {
                    if last == entry {
                        self.opening.remove(node);
                    }
                }
                _ => return self.appended(*node, *entry, book),
            },
            _ => {}
        }
        Ok(())
    }
}
