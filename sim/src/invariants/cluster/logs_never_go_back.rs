//! logs-never-go-back: what a node has reported to a leader as flushed is on its disk when the node is
//! started again, unless a leader has had it removed since: the leader has counted it for a quorum. What the
//! simulation itself removes from the disk is exempt.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Fact, Index};

/// How far each node's log was told to be on its disk.
#[derive(Default)]
pub struct LogsNeverGoBack {
    told: BTreeMap<NodeId, Index>,
}

impl Invariant for LogsNeverGoBack {
    fn name(&self) -> &'static str {
        "logs-never-go-back"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        match what {
            NodeFact::Acknowledged { upto } => {
                let told = self.told.entry(*node).or_default();
                *told = upto.index.max(*told);
            }
            NodeFact::Truncated { after } => {
                let told = self.told.entry(*node).or_default();
                *told = (*told).min(*after);
            }
            NodeFact::Forgot => drop(self.told.remove(node)),
            NodeFact::Opened { last, .. } => {
                let told = self.told.get(node).copied().unwrap_or_default();
                let last = last.map_or(Index(0), |last| last.index);
                if last < told {
                    return Err(format!(
                        "node {node} is started again with a log up to {last:?}, and had told of {told:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::judge;
    use super::super::testing::{node, position, truncated};
    use super::*;

    fn opened(last: Option<u64>) -> Fact {
        let last = last.map(|index| position((1, 1, index)));
        node(1, NodeFact::Opened { vote: None, purged: None, last })
    }

    fn acknowledged(index: u64) -> Fact {
        node(1, NodeFact::Acknowledged { upto: position((1, 1, index)) })
    }

    fn opinion(facts: &[Fact]) -> Result<(), String> {
        judge(LogsNeverGoBack::default(), facts)
    }

    #[test]
    fn an_entry_that_was_told_and_is_not_on_the_disk_is_caught_as_the_node_starts() {
        assert_eq!(opinion(&[opened(None), acknowledged(7), opened(Some(7))]), Ok(()));
        assert!(opinion(&[opened(None), acknowledged(7), opened(Some(6))]).is_err());
        assert!(opinion(&[opened(None), acknowledged(7), acknowledged(5), opened(None)]).is_err());
    }

    #[test]
    fn what_a_leader_has_taken_out_need_not_be_there() {
        assert_eq!(opinion(&[acknowledged(7), truncated(1, 5), opened(Some(5))]), Ok(()));
        assert!(opinion(&[acknowledged(7), truncated(1, 5), opened(Some(4))]).is_err());
    }

    #[test]
    fn what_the_simulation_took_from_the_disk_need_not_be_there() {
        let forgot = || node(1, NodeFact::Forgot);
        assert_eq!(opinion(&[acknowledged(7), forgot(), opened(None)]), Ok(()));
        assert!(opinion(&[acknowledged(7), forgot(), opened(None), acknowledged(3), opened(None)]).is_err());
    }
}
