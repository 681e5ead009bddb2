//! logs-never-go-back: entries reported to a leader as flushed are on the node's disk at the next start, in
//! the log or the snapshot, unless a leader has truncated the entries since: the leader has counted these
//! entries for a quorum. Data removed from the disk by the simulation is exempt.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::NodeFact;
use crate::history::{Fact, Index};

/// Last index that each node has reported as flushed.
#[derive(Default)]
pub struct LogsNeverGoBack {
    reported: BTreeMap<NodeId, Index>,
    /// Last index in the log of a started node, and a larger index that the node has reported: the node's
    /// snapshot, loaded next, must cover the larger index.
    owed: BTreeMap<NodeId, (Index, Index)>,
}

impl Invariant for LogsNeverGoBack {
    fn name(&self) -> &'static str {
        "logs-never-go-back"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        if matches!(what, NodeFact::Started | NodeFact::Ended { .. }) {
            self.owed.remove(node);
        } else if let Some((last, told)) = self.owed.remove(node) {
            // A node reports its log's entries before its snapshot.
            match what {
                NodeFact::Appended { .. } => drop(self.owed.insert(*node, (last, told))),
                NodeFact::Installed { entry: Some(entry), .. } if entry.index >= told => {}
                _ => {
                    return Err(format!(
                        "node {node} is started again with a log up to {last:?}, and had told of {told:?}"
                    ));
                }
            }
        }
        match what {
            NodeFact::Acknowledged { upto } => {
                let told = self.reported.entry(*node).or_default();
                *told = upto.index.max(*told);
            }
            NodeFact::Truncated { after } => {
                let told = self.reported.entry(*node).or_default();
                *told = (*told).min(*after);
            }
            NodeFact::Forgot => drop(self.reported.remove(node)),
            NodeFact::Opened { last, .. } => {
                let told = self.reported.get(node).copied().unwrap_or_default();
                let last = last.map_or(Index(0), |last| last.index);
                if last < told {
                    self.owed.insert(*node, (last, told));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check_history;
    use super::super::testing::{node, position, truncated};
    use super::*;

    fn opened(last: Option<u64>) -> Fact {
        let last = last.map(|index| position((1, 1, index)));
        node(1, NodeFact::Opened { vote: None, purged: None, last })
    }

    fn acknowledged(index: u64) -> Fact {
        node(1, NodeFact::Acknowledged { upto: position((1, 1, index)) })
    }

    /// First fact of a node without a snapshot to load.
    fn voted() -> Fact {
        node(1, NodeFact::Voted { term: 2, candidate: NodeId(1) })
    }

    fn check_facts(facts: &[Fact]) -> Result<(), String> {
        check_history(LogsNeverGoBack::default(), &[facts, &[voted()]].concat())
    }

    #[test]
    fn a_reported_entry_missing_at_the_nodes_start_is_caught() {
        assert_eq!(check_facts(&[opened(None), acknowledged(7), opened(Some(7))]), Ok(()));
        assert!(check_facts(&[opened(None), acknowledged(7), opened(Some(6))]).is_err());
        assert!(check_facts(&[opened(None), acknowledged(7), acknowledged(5), opened(None)]).is_err());
    }

    /// A node acknowledges entries before the end of a snapshot that the node has just installed, and purges
    /// the log without a flush: the flush of the next entry covers the purge (seed 500,513).
    #[test]
    fn what_the_snapshot_covers_need_not_be_in_the_log() {
        let started = || node(1, NodeFact::Started);
        let entry = || node(1, NodeFact::Appended { entry: position((1, 1, 3)), hash: 0 });
        let installed =
            |index| node(1, NodeFact::Installed { entry: Some(position((1, 1, index))), digest: 0 });
        let before = [opened(None), installed(9), acknowledged(7), started(), opened(Some(3)), entry()];
        assert_eq!(check_facts(&[&before[..], &[installed(9)]].concat()), Ok(()));
        assert!(check_facts(&[&before[..], &[installed(6)]].concat()).is_err());
        assert!(check_facts(&before).is_err(), "the snapshot is lost");
    }

    #[test]
    fn what_a_leader_has_taken_out_need_not_be_there() {
        assert_eq!(check_facts(&[acknowledged(7), truncated(1, 5), opened(Some(5))]), Ok(()));
        assert!(check_facts(&[acknowledged(7), truncated(1, 5), opened(Some(4))]).is_err());
    }

    #[test]
    fn what_the_simulation_took_from_the_disk_need_not_be_there() {
        let forgot = || node(1, NodeFact::Forgot);
        assert_eq!(check_facts(&[acknowledged(7), forgot(), opened(None)]), Ok(()));
        assert!(
            check_facts(&[acknowledged(7), forgot(), opened(None), acknowledged(3), opened(None)]).is_err()
        );
    }
}
