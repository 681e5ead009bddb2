//! durable: a write is in the log when a node acknowledges the write, and stays there. At the end of a run,
//! with all nodes back, every running node has applied all entries that any node had applied a second before,
//! whatever processes were killed or lost power. (committed-never-changes and replica-equality check that all
//! nodes applied the same entries.)

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use super::matching::{Matched, Matching};
use crate::history::node::NodeFact;
use crate::history::{Fact, Index};

/// Progress of each node's state.
#[derive(Default)]
pub struct Durable {
    matching: Matching,
    last: Index,
    /// Value of `last` at the last two `Passed` facts: later entries may still be under way.
    due: [Index; 2],
    /// Last applied index of each running node.
    applied: BTreeMap<NodeId, Index>,
    /// Nodes that lost data, and the last applied index at that time: until a node has caught up to this
    /// index, the node may be running without being admitted to the cluster.
    forgot: BTreeMap<NodeId, Index>,
}

impl Durable {
    fn node(&mut self, node: NodeId, what: &NodeFact) {
        match what {
            NodeFact::Started => {
                self.applied.insert(node, Index(0));
            }
            NodeFact::Ended { .. } => {
                self.applied.remove(&node);
            }
            NodeFact::Applied { entry, .. } | NodeFact::Installed { entry: Some(entry), .. } => {
                self.applied.insert(node, entry.index);
                self.last = self.last.max(entry.index);
            }
            NodeFact::Forgot => {
                self.forgot.insert(node, self.last);
            }
            _ => {}
        }
    }
}

impl Invariant for Durable {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Node { node, what, .. } => self.node(*node, what),
            Fact::Passed { .. } => self.due = [self.due[1], self.last],
            Fact::Settled => {
                let may_stay_away = |node: &NodeId, index: &Index| {
                    self.forgot.get(node).is_some_and(|forgot| index <= forgot)
                };
                let mut behind = self.applied.iter().filter(|(_, index)| **index < self.due[0]);
                if let Some((node, index)) = behind.find(|(node, index)| !may_stay_away(node, index)) {
                    return Err(format!(
                        "node {node} is at {index:?} in the end, and {:?} has been applied",
                        self.due[0]
                    ));
                }
            }
            _ => {}
        }
        match self.matching.observe(fact) {
            Matched::Answered(sent, Ok(answer)) if sent.logged.is_none() => Err(format!(
                "client {} was answered {answer:?} to {:?} of session {}, and no node has applied it",
                sent.client.0, sent.op, sent.session
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rowlock_world::time::Nanos;

    use super::super::super::check_history;
    use super::super::testing::{applied, delete, invoked, logged, node, returned};
    use super::*;
    use crate::history::client::Answer;
    use crate::history::node::Down;

    #[test]
    fn an_answer_before_the_write_is_applied_is_caught() {
        let op = || delete("/data/a");
        let ran = logged(1, 5, op(), Ok(Answer::Deleted));
        let answered = returned(1, 1, Ok(Answer::Deleted));
        assert!(
            check_history(Durable::default(), &[invoked(1, 1, op()), answered.clone(), ran.clone()]).is_err()
        );
        assert_eq!(check_history(Durable::default(), &[invoked(1, 1, op()), ran, answered]), Ok(()));
    }

    #[test]
    fn a_node_that_has_lost_the_end_of_the_log_is_caught() {
        let up = |who| node(who, NodeFact::Started);
        let lost = |who| node(who, NodeFact::Ended { how: Down::PowerLost });
        let end = [Fact::Passed { at: Nanos(1) }, Fact::Passed { at: Nanos(2) }, Fact::Settled];
        let check_facts = |facts: &[Fact]| check_history(Durable::default(), &[facts, &end].concat());
        let (first, second) = (applied(1, (1, 1, 1), 7), applied(1, (1, 1, 2), 7));
        let facts = [up(1), first.clone(), second.clone(), lost(1), up(1), first];
        assert!(check_facts(&facts).is_err());
        assert_eq!(
            check_history(Durable::default(), &[&facts[..], &end[2..]].concat()),
            Ok(()),
            "it may be on its way"
        );
        assert_eq!(check_facts(&[&facts[..], &[second]].concat()), Ok(()));
        let forgetful = [&facts[..4], &[node(1, NodeFact::Forgot)], &facts[4..]].concat();
        assert_eq!(check_facts(&forgetful), Ok(()), "it may be told to stay away");
        let more = [applied(1, (1, 1, 3), 7), up(2), applied(2, (1, 1, 4), 7)];
        assert!(check_facts(&[&forgetful[..], &more].concat()).is_err(), "it takes part again");
        assert_eq!(check_facts(&[&facts[..], &[lost(1)]].concat()), Ok(()));
    }
}
