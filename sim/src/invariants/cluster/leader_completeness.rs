//! leader-completeness: "If a log entry is committed in a given term, then that entry will be present in the logs of the
//! leaders for all higher-numbered terms" (Raft, figure 3).

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use super::node_log::NodeLog;
use crate::history::Fact;
use crate::history::node::{NodeFact, Position};

/// All logs, and what was committed under whom.
#[derive(Default)]
pub struct LeaderCompleteness {
    /// The last entry of each leader that was applied somewhere. By log-matching it stands for those before it.
    committed: BTreeMap<(u64, NodeId), Position>,
    logs: BTreeMap<NodeId, NodeLog>,
}

impl Invariant for LeaderCompleteness {
    fn name(&self) -> &'static str {
        "leader-completeness"
    }

    fn observe(&mut self, fact: &Fact) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        let log = self.logs.entry(*node).or_default();
        log.observe(what);
        match what {
            NodeFact::Applied { entry, .. } => {
                let last = self.committed.entry((entry.term, entry.leader)).or_insert(*entry);
                *last = (*last).max(*entry);
            }
            NodeFact::Leads { term } => {
                if let Some((_, entry)) = self.committed.range(..(*term, *node)).next_back()
                    && !log.has(*entry)
                {
                    return Err(format!(
                        "node {node} leads term {term}, and its log has not {entry:?}, which has been applied"
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
    use super::super::testing::{appended, applied, installed, node};
    use super::*;

    fn leads(who: u64, term: u64) -> Fact {
        node(who, NodeFact::Leads { term })
    }

    #[test]
    fn a_leader_without_an_entry_that_was_applied_is_caught() {
        let facts = [appended(2, (1, 1, 4), 7), applied(1, (1, 1, 5), 7)];
        assert!(judge(LeaderCompleteness::default(), &[&facts[..], &[leads(2, 2)]].concat()).is_err());
        let complete = [&facts[..], &[appended(2, (1, 1, 5), 7), leads(2, 2)]].concat();
        assert_eq!(judge(LeaderCompleteness::default(), &complete), Ok(()));
        let by_snapshot = [&facts[..], &[installed(2, (1, 1, 5), 0), leads(2, 2)]].concat();
        assert_eq!(judge(LeaderCompleteness::default(), &by_snapshot), Ok(()));
    }

    #[test]
    fn what_later_leaders_commit_is_not_demanded() {
        let facts = [applied(1, (3, 1, 5), 7), leads(2, 2)];
        assert_eq!(judge(LeaderCompleteness::default(), &facts), Ok(()));
    }
}
