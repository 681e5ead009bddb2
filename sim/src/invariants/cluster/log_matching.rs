//! log-matching: "If two logs contain an entry with the same index and term, then the logs are identical in
//! all entries up through the given index" (Raft, figure 3). In openraft the number of a term does not
//! identify a leader: term and node together do.

use std::collections::BTreeMap;

use rowlock_proto::NodeId;

use super::super::Invariant;
use crate::history::node::{NodeFact, Position};
use crate::history::{Book, Fact, Index, NodeLog};

/// First report of an entry.
struct Entry {
    by: NodeId,
    hash: u64,
    before: Option<Position>,
}

/// Entries of all logs.
#[derive(Default)]
pub struct LogMatching {
    entries: BTreeMap<Position, Entry>,
}

impl LogMatching {
    fn appended(
        &mut self,
        node: NodeId,
        (entry, hash): (Position, u64),
        log: &NodeLog,
    ) -> Result<(), String> {
        let before = entry.index.0.checked_sub(1).and_then(|index| log.get(Index(index)));
        if let Some(before) =
            before.filter(|before| (before.term, before.leader) > (entry.term, entry.leader))
        {
            return Err(format!("node {node} has {entry:?} behind {before:?}, of a later leader"));
        }
        let known = self.entries.entry(entry).or_insert(Entry { by: node, hash, before });
        if known.hash != hash {
            return Err(format!(
                "{entry:?} is one thing in the log of node {} and another in that of {node}",
                known.by
            ));
        }
        match (known.before, before) {
            (Some(known_before), Some(before)) if known_before != before => Err(format!(
                "{entry:?} follows {known_before:?} in the log of node {} and {before:?} in that of {node}",
                known.by
            )),
            (None, Some(_)) => {
                known.before = before;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for LogMatching {
    fn name(&self) -> &'static str {
        "log-matching"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { node, what: NodeFact::Appended { entry, hash }, .. } => {
                self.appended(*node, (*entry, *hash), book.log(*node))
            }
            _ => Ok(()),
        }
    }
}
