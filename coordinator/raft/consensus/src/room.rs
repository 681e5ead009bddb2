//! Which members have room on their disks for what grows, as far as the leader knows.
//!
//! In the flow: each node says of itself whether it is short of room ([`Room::we_are_short`]), and reports it
//! to the leader with the signs of life of its sessions. Before an entry is made, the leader asks whether a
//! majority of the voters has room ([`Room::suffices`]); if not, what grows is refused in the entry, so all
//! replicas agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use rowlock_env::time::{self, Instant};
use rowlock_proto::NodeId;

/// A node that has reported, and then nothing for so long, stores nothing either.
const SILENT_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Room {
    ours_is_short: AtomicBool,
    theirs: Mutex<Reports>,
}

/// Of the other nodes, in one term of this leader.
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
    /// Whether this node's own disk is short of room.
    pub fn we_are_short(&self, is_short: bool) {
        self.ours_is_short.store(is_short, Relaxed);
    }

    /// As it was last said.
    pub fn are_we_short(&self) -> bool {
        self.ours_is_short.load(Relaxed)
    }

    /// What `from` has reported to this node as the leader of `term`.
    pub fn note(&self, term: u64, from: NodeId, is_short: bool) {
        let mut theirs = self.theirs.lock();
        if theirs.term < term {
            *theirs = Reports { term, of: BTreeMap::new() };
        }
        if theirs.term == term {
            theirs.of.insert(from, Report { is_short, at: time::now() });
        }
    }

    /// Whether a majority of each of these sets of voters has room; `voters` is only asked for if a node is
    /// short. Of a node that has not reported to the leader of `term`, `me`, it is assumed.
    pub fn suffices(&self, term: u64, me: NodeId, voters: impl FnOnce() -> Vec<BTreeSet<NodeId>>) -> bool {
        let (ours, now) = (!self.are_we_short(), time::now());
        let theirs = self.theirs.lock();
        let of = |node: &NodeId| theirs.of.get(node).filter(|_| theirs.term == term);
        if ours && !theirs.of.keys().filter_map(of).any(|report| report.is_short) {
            return true;
        }
        let has_room =
            |node: &&NodeId| if **node == me { ours } else { of(node).is_none_or(|it| it.has_room(now)) };
        voters().iter().all(|set| set.iter().filter(has_room).count() > set.len() / 2)
    }

    /// The other nodes that have told the leader of `term` lately that they have room.
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
    fn what_grows_needs_room_on_a_majority_of_the_voters() {
        let room = Room::default();
        assert!(suffices(&room, &[&[1, 2, 3]]), "nobody has said anything");
        room.note(3, NodeId(2), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "one is full");
        room.we_are_short(true);
        assert!(!suffices(&room, &[&[1, 2, 3]]), "two are full");
        assert!(suffices(&room, &[&[1, 2, 3, 4, 5]]));
        assert!(!suffices(&room, &[&[1, 2, 3, 4, 5], &[2]]), "a majority of both, while the voters change");
        room.note(3, NodeId(2), false);
        assert!(suffices(&room, &[&[1, 2, 3]]));
        assert_eq!(room.others_with_room(3), set(&[2]));
        room.note(3, NodeId(4), true);
        room.we_are_short(false);
        assert!(suffices(&room, &[&[1, 2, 3]]), "a learner does not count");
    }

    #[test]
    fn reports_are_those_of_one_term() {
        let room = Room::default();
        room.note(2, NodeId(2), true);
        room.note(2, NodeId(3), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "of an earlier term");
        room.note(3, NodeId(2), true);
        room.note(2, NodeId(3), true);
        assert!(suffices(&room, &[&[1, 2, 3]]), "a late one");
        assert!(room.others_with_room(3).is_empty());
        room.note(3, NodeId(3), true);
        assert!(!suffices(&room, &[&[1, 2, 3]]));
    }

    #[test]
    fn a_node_that_has_fallen_silent_does_not_count_while_another_one_is_short() {
        let room = Room::default();
        let long_ago = time::now() - SILENT_AFTER;
        let report = Report { is_short: false, at: long_ago };
        *room.theirs.lock() = Reports { term: 3, of: BTreeMap::from([(NodeId(2), report)]) };
        assert!(suffices(&room, &[&[1, 2, 3]]), "nobody is short");
        room.note(3, NodeId(3), true);
        assert!(!suffices(&room, &[&[1, 2, 3]]), "the next entry would have to fit on the one that is short");
        assert!(room.others_with_room(3).is_empty());
    }
}
