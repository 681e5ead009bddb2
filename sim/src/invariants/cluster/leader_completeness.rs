//! leader-completeness: "If a log entry is committed in a given term, then that entry will be present in the
//! logs of the leaders for all higher-numbered terms" (Raft, figure 3).

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::{NodeFact, Position};
use crate::history::{Book, Fact};

/// Committed entries by vote.
///
/// A later leader than an entry's creator often commits the entry. A candidate of a term in between may lack
/// the entry and still learn late of its election. So the checker demands an entry only of leaders after the
/// vote of the node that applied the entry: a node hears of a commit from the leader of its vote or of an
/// earlier vote.
#[derive(Default)]
pub struct LeaderCompleteness {
    /// Last entry that any node with this vote applied. By log-matching the entry stands for all earlier
    /// ones.
    committed: BTreeMap<(u64, NodeId), Position>,
    votes: BTreeMap<NodeId, (u64, NodeId)>,
    forgets: bool,
    /// Violation of each term whose leader may restart the cluster. A restart begins a new life: an entry of
    /// that term shows in this life only if the leader does not restart the cluster.
    incomplete: BTreeMap<u64, String>,
}

impl LeaderCompleteness {
    /// Creates the checker. `forgets`: nodes acknowledge entries about locks before their flush.
    pub fn of(forgets: bool) -> Self {
        LeaderCompleteness { forgets, ..Self::default() }
    }
}

impl Invariant for LeaderCompleteness {
    fn name(&self) -> &'static str {
        "leader-completeness"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        let Fact::Node { node, what, .. } = fact else { return Ok(()) };
        match what {
            NodeFact::Voted { term, candidate } => {
                self.votes.insert(*node, (*term, *candidate));
            }
            NodeFact::Opened { vote: Some(vote), .. } => {
                self.votes.insert(*node, *vote);
            }
            NodeFact::Applied { entry, .. } => {
                if let Some(what) = self.incomplete.remove(&entry.term) {
                    return Err(what);
                }
                let made_by = (entry.term, entry.leader);
                let committed_by = self.votes.get(node).map_or(made_by, |vote| made_by.max(*vote));
                let last = self.committed.entry(committed_by).or_insert(*entry);
                *last = (*last).max(*entry);
            }
            NodeFact::Leads { term } => {
                if let Some((_, entry)) = self.committed.range(..(*term, *node)).next_back()
                    && !book.log(*node).has(*entry)
                {
                    let what = format!(
                        "node {node} leads term {term}, and its log has not {entry:?}, which has been applied"
                    );
                    if !self.forgets {
                        return Err(what);
                    }
                    self.incomplete.insert(*term, what);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
