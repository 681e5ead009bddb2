//! The leader's own changes of members: no voter in contact is removed, nor one beyond the minimum of voters.

use std::collections::BTreeSet;
use std::time::Duration;

use rowlock_proto::NodeId;

use super::owed::Owed;
use crate::history::node::{Members, Position};

/// Time after which a leader knows that a connected node answers.
const ANSWERS: Duration = Duration::from_secs(4);

#[derive(Default)]
pub(super) struct Autopilot {
    /// Minimum of voters after a removal; `None`: an operator removes voters.
    least: Option<usize>,
    /// Newest membership in any log, and the nodes that answered when it was proposed.
    proposed: Option<(Position, BTreeSet<NodeId>)>,
    voters: BTreeSet<NodeId>,
}

impl Autopilot {
    pub(super) fn new(least: Option<usize>) -> Self {
        Autopilot { least, ..Autopilot::default() }
    }

    /// Records the first report of a membership.
    pub(super) fn propose(&mut self, entry: Position, owed: &Owed) {
        if self.proposed.as_ref().is_none_or(|(last, _)| entry > *last) {
            self.proposed = Some((entry, owed.answering(ANSWERS)));
        }
    }

    /// Checks the removals of a committed membership.
    pub(super) fn commit(&mut self, entry: Position, members: &Members) -> Result<(), String> {
        let Some(voters) = members.voters.last() else { return Ok(()) };
        let before = std::mem::replace(&mut self.voters, voters.clone());
        let (Some(least), Some(removed)) = (self.least, before.difference(voters).next()) else {
            return Ok(());
        };
        if voters.len() < least {
            return Err(format!("node {removed} is removed, and {voters:?} are fewer than {least} voters"));
        }
        let proposed = self.proposed.as_ref().filter(|(last, _)| *last == entry);
        match proposed.is_some_and(|(_, answering)| answering.contains(removed)) {
            true => Err(format!("node {removed} is removed, although it answers the leader")),
            false => Ok(()),
        }
    }
}
