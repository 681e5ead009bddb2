//! voters-have-the-log: when a change of members commits, each node that becomes a voter has on its disk the
//! log, or a snapshot of it, up to the entries that were committed an election timeout before the change was
//! proposed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::node::{Members, NodeFact, Position};
use crate::history::{Book, Fact, Index};

/// Age of entries, at the proposal of a change, that a new voter has: the last round of its catching up takes
/// less than an election timeout, and the clock of the leader may be slow.
const ROUND: Duration = Duration::from_millis(1_200);
/// Age of a loss of data, at the proposal of a change, that the leader may not have noticed.
const UNNOTICED: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct VotersHaveTheLog {
    /// Time of the first report of each membership.
    proposed: BTreeMap<Position, Nanos>,
    /// Last entry that any node had applied at each time.
    applied: BTreeMap<Nanos, Position>,
    /// Last committed membership: the entry, and the voters of all sets.
    committed: Option<(Position, BTreeSet<NodeId>)>,
    /// Last entry that each node has acknowledged, or has in a snapshot.
    stored: BTreeMap<NodeId, Index>,
    /// Last time at which each node lost entries: a fault removed data, or unflushed entries went with the
    /// power.
    forgot: BTreeMap<NodeId, Nanos>,
}

impl VotersHaveTheLog {
    fn committed(&mut self, entry: Position, members: &Members) -> Result<(), String> {
        let voters: BTreeSet<NodeId> = members.voters.iter().flatten().copied().collect();
        let before = self.committed.replace((entry, voters.clone()));
        let (Some((_, before)), Some(at)) = (before, self.proposed.get(&entry)) else { return Ok(()) };
        let owed_at = Nanos(at.0.saturating_sub(ROUND.as_nanos() as u64));
        let Some((_, owed)) = self.applied.range(..=owed_at).next_back() else { return Ok(()) };
        let lost = |node: &NodeId| self.forgot.get(node).is_some_and(|lost| *lost + UNNOTICED > *at);
        let lags =
            |node: &&NodeId| self.stored.get(node).is_none_or(|stored| *stored < owed.index) && !lost(node);
        match voters.difference(&before).find(lags) {
            Some(node) => Err(format!(
                "node {node} becomes a voter by {entry:?}, proposed at {at}, and has not stored {owed:?}, which was applied by {owed_at}"
            )),
            None => Ok(()),
        }
    }
}

impl Invariant for VotersHaveTheLog {
    fn name(&self) -> &'static str {
        "voters-have-the-log"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        let Fact::Node { node, at, what } = fact else { return Ok(()) };
        match what {
            NodeFact::Forgot => {
                self.stored.remove(node);
                self.forgot.insert(*node, *at);
            }
            NodeFact::Opened { last, remembers: false, .. } => {
                let last = last.map_or(Index(0), |last| last.index);
                if let Some(stored) = self.stored.get_mut(node).filter(|stored| **stored > last) {
                    *stored = last;
                    self.forgot.insert(*node, *at);
                }
            }
            NodeFact::Acknowledged { upto: entry } | NodeFact::Installed { entry: Some(entry), .. } => {
                let stored = self.stored.entry(*node).or_default();
                *stored = entry.index.max(*stored);
            }
            NodeFact::Truncated { after } => {
                self.stored.entry(*node).and_modify(|stored| *stored = (*stored).min(*after));
            }
            NodeFact::Members { entry, .. } => drop(self.proposed.entry(*entry).or_insert(*at)),
            NodeFact::Applied { entry, .. } => {
                let last = self.applied.last_key_value().map(|(_, last)| last.index);
                if last < Some(entry.index) {
                    self.applied.insert(*at, *entry);
                    if let Some(members) = book.members(*entry) {
                        return self.committed(*entry, members);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
