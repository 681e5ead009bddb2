//! changes-end: no joint set of voters lasts longer than a bound while a quorum of both sets is connected and
//! flushes, and while the connections between these voters do not change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rowlock_proto::NodeId;
use rowlock_world::time::Nanos;

use super::super::Invariant;
use crate::history::node::{Members, NodeFact};
use crate::history::{Book, Fact, Index, Quorum};

/// Bound for a connected quorum to end a change of voters, at default timers: a leader is elected, and looks
/// once a second for a change that its predecessor left.
const WITHIN: Duration = Duration::from_secs(6);

type Pairs = BTreeSet<(NodeId, NodeId)>;

#[derive(Default)]
pub struct ChangesEnd {
    /// Index of the last committed membership.
    last: Index,
    /// Committed joint sets of voters, and the time since when they and their connections are the same.
    joint: Option<(Arc<Members>, Nanos)>,
    sound: Arc<BTreeSet<NodeId>>,
    clear: Arc<Pairs>,
    is_settled: bool,
}

impl ChangesEnd {
    /// Returns the working nodes and connections among these voters.
    fn among(&self, voters: &BTreeSet<NodeId>) -> (BTreeSet<NodeId>, Pairs) {
        let is_within = |pair: &&(NodeId, NodeId)| voters.contains(&pair.0) && voters.contains(&pair.1);
        (
            self.sound.intersection(voters).copied().collect(),
            self.clear.iter().filter(is_within).copied().collect(),
        )
    }

    fn linked(&mut self, at: Nanos, sound: &Arc<BTreeSet<NodeId>>, clear: &Arc<Pairs>) {
        let voters = self.joint.as_ref().map(|(members, _)| Quorum(&members.voters).voters());
        let before = voters.as_ref().map(|voters| self.among(voters));
        (self.sound, self.clear) = (sound.clone(), clear.clone());
        let now = voters.as_ref().map(|voters| self.among(voters));
        if let Some((_, since)) = self.joint.as_mut().filter(|_| before != now) {
            *since = at;
        }
    }

    fn overdue(&self, now: Nanos) -> Result<(), String> {
        let Some((members, since)) = &self.joint else { return Ok(()) };
        let is_clear = |one: NodeId, other: NodeId| self.clear.contains(&(one.min(other), one.max(other)));
        let has_core = Quorum(&members.voters).has_core(&self.sound, is_clear);
        if self.is_settled || !has_core || now <= *since + WITHIN {
            return Ok(());
        }
        Err(format!(
            "the change of voters {:?} has no end at {now}, and a quorum of both sets is connected since {since}",
            members.voters
        ))
    }
}

impl Invariant for ChangesEnd {
    fn name(&self) -> &'static str {
        "changes-end"
    }

    fn observe(&mut self, fact: &Fact, book: &Book) -> Result<(), String> {
        match fact {
            Fact::Node { at, what: NodeFact::Applied { entry, .. }, .. } if entry.index > self.last => {
                if let Some(members) = book.members(*entry) {
                    self.last = entry.index;
                    self.joint = (members.voters.len() > 1).then(|| (members.clone(), *at));
                }
            }
            Fact::Linked { at, sound, clear } => self.linked(*at, sound, clear),
            Fact::Passed { at } => return self.overdue(*at),
            Fact::Settled => self.is_settled = true,
            _ => {}
        }
        Ok(())
    }
}
