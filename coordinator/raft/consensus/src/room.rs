//! Disk room of the members for growth, as reported to the leader.
//!
//! In the flow: each node records whether its own disk is short of room ([`Room::set_short`]), and reports
//! the state to the leader with its sessions' touches. Before creating an entry, the leader checks whether a
//! majority of the voters has room ([`Room::suffices`]); if not, the entry refuses growing commands, so all
//! replicas agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

/// Silence after which a node that has reported before counts as full: it stores nothing either.
const SILENT_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Room {
    ours_is_short: AtomicBool,
    theirs: Mutex<Reports>,
}

/// Reports of the other nodes, in one term of this leader.
#[derive(Debug, Default)]
struct Reports {
    term: u64,
    of: BTreeMap<NodeId, Report>,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    is_short: bool,
    at: Instant,
}

impl Report {
    fn has_room(&self, now: Instant) -> bool {
        !self.is_short && now.saturating_since(self.at) < SILENT_AFTER
    }
}

impl Room {
    pub fn set_short(&self, is_short: bool) {
        self.ours_is_short.store(is_short, Relaxed);
    }

    pub fn is_short(&self) -> bool {
        self.ours_is_short.load(Relaxed)
    }

    /// Records the report of `from` to this node as the leader of `term`.
    pub fn record(&self, term: u64, from: NodeId, is_short: bool) {
        let mut theirs = self.theirs.lock();
        if theirs.term < term {
            *theirs = Reports { term, of: BTreeMap::new() };
        }
        if theirs.term == term {
            theirs.of.insert(from, Report { is_short, at: time::now() });
        }
    }

    /// Returns whether a majority of each set of voters has room; `voters` is only called if a node is short.
    /// A node without a report to `me`, the leader of `term`, counts as having room.
    pub fn suffices(&self, term: u64, me: NodeId, voters: impl FnOnce() -> Vec<BTreeSet<NodeId>>) -> bool {
        let (ours, now) = (!self.is_short(), time::now());
        let theirs = self.theirs.lock();
        let of = |node: &NodeId| theirs.of.get(node).filter(|_| theirs.term == term);
        if ours && !theirs.of.keys().filter_map(of).any(|report| report.is_short) {
            return true;
        }
        let has_room =
            |node: &&NodeId| if **node == me { ours } else { of(node).is_none_or(|it| it.has_room(now)) };
        voters().iter().all(|set| set.iter().filter(has_room).count() > set.len() / 2)
    }

    /// Returns the other nodes that recently reported room to the leader of `term`.
    pub fn others_with_room(&self, term: u64) -> BTreeSet<NodeId> {
        let (theirs, now) = (self.theirs.lock(), time::now());
        let with_room = theirs.of.iter().filter(|(_, report)| theirs.term == term && report.has_room(now));
        with_room.map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);

    fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn suffices(room: &Room, sets: &[&[u64]]) -> bool {
        room.suffices(3, ME, || sets.iter().map(|nodes| set(nodes)).collect())
    }

    #[test]
    fn growth_needs_room_on_a_majority_of_the_voters() {
        let room = Room::default();
        assert!(suffices(&room, &[&[1, 2, 3]]), "no reports");
        room.record(3, NodeId(2), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "one is full");
        room.set_short(true);
        assert!(!suffices(&room, &[&[1, 2, 3]]), "two are full");
        assert!(suffices(&room, &[&[1, 2, 3, 4, 5]]));
        assert!(!suffices(&room, &[&[1, 2, 3, 4, 5], &[2]]), "a majority of both, while the voters change");
        room.record(3, NodeId(2), false);
        assert!(suffices(&room, &[&[1, 2, 3]]));
        assert_eq!(room.others_with_room(3), set(&[2]));
        room.record(3, NodeId(4), true);
        room.set_short(false);
        assert!(suffices(&room, &[&[1, 2, 3]]), "a learner does not count");
    }

    #[test]
    fn reports_of_other_terms_do_not_count() {
        let room = Room::default();
        room.record(2, NodeId(2), true);
        room.record(2, NodeId(3), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "of an earlier term");
        room.record(3, NodeId(2), true);
        room.record(2, NodeId(3), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "a late one");
        assert!(room.others_with_room(3).is_empty());
        room.record(3, NodeId(3), true);
        assert!(!suffices(&room, &[&[1, 2, 3]]));
    }

    #[test]
    fn a_silent_node_counts_as_full_while_another_is_short() {
        let room = Room::default();
        let long_ago = time::now() - SILENT_AFTER;
        let report = Report { is_short: false, at: long_ago };
        *room.theirs.lock() = Reports { term: 3, of: BTreeMap::from([(NodeId(2), report)]) };
        assert!(suffices(&room, &[&[1, 2, 3]]), "no node is short");
        room.record(3, NodeId(3), true);
        assert!(!suffices(&room, &[&[1, 2, 3]]), "the next entry would have to fit on the one that is short");
        assert!(room.others_with_room(3).is_empty());
    }
}
